#include "daemon/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "daemon/config/load.h"

namespace ckptd {
namespace {

Surroundings With(const std::map<std::string, std::string>& variables) {
  auto environment = [variables](absl::string_view name) -> std::optional<std::string> {
    auto found = variables.find(std::string(name));
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
  return Surroundings{environment, "1000"};
}

TEST(Defaults, SystemIgnoresTheEnvironment) {
  Defaults defaults = DefaultConfig(ConfigMode::kSystem, With({{"XDG_RUNTIME_DIR", "/x"}, {"HOME", "/y"}}));
  EXPECT_EQ(defaults.config, Config());
  EXPECT_EQ(defaults.config.agent.socket, "/run/ckptd/ckptd.sock");
  EXPECT_TRUE(CheckConfig(defaults.config).ok());
}

TEST(Defaults, UserLivesInItsOwnDirectories) {
  Defaults defaults =
      DefaultConfig(ConfigMode::kUser, With({{"XDG_RUNTIME_DIR", "/run/user/1000"}, {"HOME", "/home/u"}}));
  EXPECT_EQ(defaults.config.agent.socket, "/run/user/1000/ckptd/ckptd.sock");
  EXPECT_EQ(defaults.config.agent.admin_socket, "/run/user/1000/ckptd/admin.sock");
  EXPECT_EQ(defaults.config.region.dir, "/dev/shm/ckptd-1000");
  EXPECT_EQ(defaults.config.storage.root, "/home/u/.local/share/ckptd");
  EXPECT_EQ(defaults.config.metrics.listen, "off");
  EXPECT_TRUE(defaults.notes.empty());
}

TEST(Defaults, FallbackOfTheSocketIsSaid) {
  Defaults defaults = DefaultConfig(ConfigMode::kUser, With({{"HOME", "/home/u"}}));
  EXPECT_EQ(defaults.config.agent.socket, "/tmp/ckptd-1000/ckptd.sock");
  EXPECT_THAT(defaults.notes, ::testing::ElementsAre(::testing::HasSubstr("XDG_RUNTIME_DIR is not set")));
}

TEST(Defaults, WithoutHomeTheRootMustBeGiven) {
  Config defaults = DefaultConfig(ConfigMode::kUser, With({})).config;
  EXPECT_FALSE(LoadConfig("", "f", defaults).ok());
  EXPECT_TRUE(LoadConfig("[storage]\nroot = \"/data\"", "f", defaults).ok());
}

}  // namespace
}  // namespace ckptd
