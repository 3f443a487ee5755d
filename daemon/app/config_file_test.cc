#include "daemon/app/config_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "daemon/base/errors.h"
#include "daemon/config/load.h"
#include "daemon/config/reload.h"
#include "daemon/os/posix_files.h"
#include "daemon/os/testing/temp_dir.h"

namespace ckptd {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ConfigFileTest : public ::testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) const { std::ofstream(path) << text; }
  [[nodiscard]] ConfigFile System() const { return {"", false, default_}; }
  [[nodiscard]] ConfigFile User() const { return {"", true, default_}; }
  [[nodiscard]] ConfigFile Named(bool user) const { return {named_, user, default_}; }
  static absl::StatusOr<std::string> Read(const ConfigFile& file) { return ReadConfigFile(PosixFiles(), file); }

  TempDir dir_;
  const std::string default_ = dir_.path() + "/default.toml";
  const std::string named_ = dir_.path() + "/named.toml";
};

TEST_F(ConfigFileTest, TheDefaultOneMayBeMissing) {
  EXPECT_EQ(ConfigFile().path(), "/etc/ckptd/ckptd.toml");
  EXPECT_EQ(Read(System()).value(), "");
  Write(default_, "x");
  EXPECT_EQ(Read(System()).value(), "x");
}

TEST_F(ConfigFileTest, ADefaultOneThatCannotBeReadIsToldOf) {
  std::filesystem::create_symlink("nowhere", default_);
  EXPECT_EQ(CodeOf(Read(System()).status()), ErrorCode::NOT_FOUND);
  EXPECT_THAT(Read(System()).status().message(), HasSubstr(default_));
  std::filesystem::remove(default_);
  std::filesystem::create_directory(default_);
  EXPECT_EQ(CodeOf(Read(System()).status()), ErrorCode::REFUSED);
}

TEST_F(ConfigFileTest, TheSystemsIsNotThatOfAUser) {
  Write(default_, "x");
  EXPECT_EQ(Read(User()).value(), "");
  std::filesystem::remove(default_);
  EXPECT_EQ(Read(User()).value(), "");
}

TEST_F(ConfigFileTest, TheNamedOneMustBeThere) {
  Write(default_, "x");
  for (const bool user : {false, true}) {
    EXPECT_EQ(CodeOf(Read(Named(user)).status()), ErrorCode::INVALID_ARGUMENT);
    EXPECT_THAT(Read(Named(user)).status().message(), HasSubstr("--config: open " + named_));
  }
  Write(named_, "y");
  for (const bool user : {false, true}) EXPECT_EQ(Read(Named(user)).value(), "y");
}

// As at SIGHUP. The system's file has settings that a user's agent must not take over.
TEST_F(ConfigFileTest, AReloadOfAUsersAgentChangesNothing) {
  Write(default_, "retention.keep_last = 1");
  const Config running = LoadConfig(Read(User()).value(), User().path(), Config()).value();
  const Reloaded reloaded = ReloadConfig(running, Read(User()).value(), User().path(), Config()).value();
  EXPECT_THAT(reloaded.applied, IsEmpty());
  EXPECT_EQ(reloaded.config, running);
}

}  // namespace
}  // namespace ckptd
