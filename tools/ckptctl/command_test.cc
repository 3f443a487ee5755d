#include "tools/ckptctl/command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

namespace ckptd {
namespace {

using ::testing::HasSubstr;
using ::testing::internal::CaptureStderr;
using ::testing::internal::CaptureStdout;
using ::testing::internal::GetCapturedStderr;
using ::testing::internal::GetCapturedStdout;

struct Ran {
  int code = 0;
  std::string out;
  std::string error;
};

Ran Ctl(const std::vector<std::string>& words) {
  CaptureStdout();
  CaptureStderr();
  Ran ran;
  ran.code = RunCommandLine(words);
  ran.out = GetCapturedStdout();
  ran.error = GetCapturedStderr();
  return ran;
}

TEST(CommandLine, EveryCommandHasHelpAndNeedsNoAgentForIt) {
  for (const Command& command : Commands()) {
    Ran ran = Ctl({command.name, "--help"});
    EXPECT_EQ(ran.code, 0) << command.name;
    EXPECT_THAT(ran.out, HasSubstr("ckptctl " + command.name));
    EXPECT_THAT(HelpText(), HasSubstr("  " + command.name + " "));
    for (const Flag& flag : command.flags) EXPECT_THAT(ran.out, HasSubstr(flag.name));
  }
  EXPECT_EQ(Ctl({"--help"}).code, 0);
}

TEST(CommandLine, TheCommandsThatThisReleaseHas) {
  std::string names;
  for (const Command& command : Commands()) names += command.name + " ";
  EXPECT_EQ(names, "status list inspect verify flush drain restore trace salvage pin unpin rm gc version ");
}

TEST(CommandLine, MistakesEndWithTwoAndTheNextStep) {
  Ran unknown = Ctl({"statsu"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.error, HasSubstr("did you mean status?"));
  EXPECT_THAT(unknown.error, HasSubstr("\n  next: "));
  EXPECT_EQ(Ctl({}).code, 2);
  EXPECT_EQ(Ctl({"inspect"}).code, 2);
  EXPECT_EQ(Ctl({"pin", "gpt@1", "gpt@2"}).code, 2);
  EXPECT_EQ(Ctl({"pin", "gpt"}).code, 2);
  EXPECT_EQ(Ctl({"rm", "gpt"}).code, 2);
  EXPECT_EQ(Ctl({"restore", "gpt"}).code, 2);
  EXPECT_EQ(Ctl({"salvage", "/tmp"}).code, 2);
  EXPECT_EQ(Ctl({"flush", "a b"}).code, 2);
  EXPECT_EQ(Ctl({"list", "-o", "xml"}).code, 2);
}

TEST(CommandLine, NoAgentIsThree) {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"status"},
                                             {"list"},
                                             {"inspect", "gpt"},
                                             {"verify", "gpt"},
                                             {"flush", "gpt"},
                                             {"drain"},
                                             {"restore", "gpt", "--to", "/tmp/ckptctl-never"},
                                             {"trace", "gpt@1"},
                                             {"pin", "gpt@1"},
                                             {"unpin", "gpt@1"},
                                             {"rm", "gpt@1"},
                                             {"gc"},
                                             {"version"}}) {
    std::vector<std::string> asked = words;
    asked.insert(asked.end(), {"--agent", "/tmp/ckptctl-no-agent.sock"});
    Ran ran = Ctl(asked);
    EXPECT_EQ(ran.code, 3) << words[0];
    EXPECT_THAT(ran.error, HasSubstr("/tmp/ckptctl-no-agent.sock")) << words[0];
  }
  setenv("CKPTD_ADMIN_SOCKET", "/tmp/ckptctl-elsewhere.sock", 1);
  EXPECT_THAT(Ctl({"status"}).error, HasSubstr("/tmp/ckptctl-elsewhere.sock"));
  unsetenv("CKPTD_ADMIN_SOCKET");
}

TEST(CommandLine, WhatIsNotThereIsFour) {
  EXPECT_EQ(Ctl({"inspect", "/tmp/ckptctl-no-such.safetensors"}).code, 4);
  EXPECT_EQ(Ctl({"verify", "/tmp/ckptctl-no-such-dir/"}).code, 4);
  EXPECT_EQ(Ctl({"salvage", "/tmp/ckptctl-no-such-dir", "--to", "/tmp/ckptctl-never"}).code, 4);
}

}  // namespace
}  // namespace ckptd
