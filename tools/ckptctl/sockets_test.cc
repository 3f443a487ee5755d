#include "tools/ckptctl/sockets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace ckptd {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> Sockets(const std::string& flag, std::map<std::string, std::string> environment) {
  auto get = [&](const std::string& name) -> std::optional<std::string> {
    auto found = environment.find(name);
    return found == environment.end() ? std::nullopt : std::optional(found->second);
  };
  return AdminSockets(flag, get, 1000);
}

TEST(AdminSockets, WhatWasSaidStandsAlone) {
  EXPECT_THAT(Sockets("/a.sock", {{"CKPTD_ADMIN_SOCKET", "/b.sock"}}), ElementsAre("/a.sock"));
  EXPECT_THAT(Sockets("", {{"CKPTD_ADMIN_SOCKET", "/b.sock"}, {"CKPTD_SOCKET", "/c/ckptd.sock"}}),
              ElementsAre("/b.sock"));
  EXPECT_THAT(Sockets("", {{"CKPTD_SOCKET", "/c/ckptd.sock"}}), ElementsAre("/c/admin.sock"));
  EXPECT_THAT(Sockets("", {{"CKPTD_SOCKET", "ckptd.sock"}}), ElementsAre("admin.sock"));
}

TEST(AdminSockets, ElseTheSystemsThenTheUsers) {
  EXPECT_THAT(Sockets("", {}), ElementsAre("/run/ckptd/admin.sock", "/tmp/ckptd-1000/admin.sock"));
  EXPECT_THAT(Sockets("", {{"XDG_RUNTIME_DIR", "/run/user/1000"}, {"CKPTD_SOCKET", "auto"}}),
              ElementsAre("/run/ckptd/admin.sock", "/run/user/1000/ckptd/admin.sock"));
}

}  // namespace
}  // namespace ckptd
