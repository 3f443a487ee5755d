#include "tools/ckptctl/command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <utility>

#include "absl/strings/str_split.h"

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
  EXPECT_EQ(names, "status list inspect verify flush drain restore trace salvage pin unpin rm gc plan version ");
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

TEST(Plan, NeedsNoAgent) {
  setenv("CKPTD_ADMIN_SOCKET", "/tmp/ckptctl-elsewhere.sock", 1);
  Ran table = Ctl({"plan", "--scheme", "group", "--nodes", "16", "--copies", "2", "--lost", "2", "--bytes", "1GiB"});
  unsetenv("CKPTD_ADMIN_SOCKET");
  EXPECT_EQ(table.code, 0) << table.error;
  EXPECT_THAT(table.out, HasSubstr("2           93.3333 %"));
  EXPECT_THAT(table.out, HasSubstr("memory     4.0 GiB  4 in 2 versions"));
}

std::string PlanJson(const std::string& line) {
  std::vector<std::string> words = {"plan", "-o", "json"};
  for (absl::string_view word : absl::StrSplit(line, ' ')) words.emplace_back(word);
  Ran ran = Ctl(words);
  EXPECT_EQ(ran.code, 0) << line << "\n" << ran.error;
  return ran.out;
}

TEST(Plan, KeysThatScriptsRead) {
  const std::string rs = PlanJson("--scheme rs --nodes 16 --data 6 --parity 2 --lost 3 --bytes 6000");
  for (const char* line : {"\"scheme\": \"rs\",", "\"copies\": null,", "\"data\": 6,", "\"survival\": 0.8,",
                           "\"always_survives\": 2,", "\"survival_by_lost\": [1, 1, 1, 0.8],",
                           "\"memory_bytes_per_node\": 16000,", "\"traffic_bytes_per_save\": 12000,",
                           "\"rebuild_bytes\": 36000,", "\"members\": 8,", "\"survives_one_rack\": null"}) {
    EXPECT_THAT(rs, HasSubstr(line));
  }
  const std::string mixed = PlanJson("--scheme mixed --nodes 7 --copies 2 --lost 2");
  EXPECT_THAT(mixed, HasSubstr("\"memory_bytes_per_node\": null,"));
  EXPECT_THAT(mixed, HasSubstr("\"memory_factor\": 4,"));
  EXPECT_THAT(mixed, HasSubstr("\"survival\": 0.7619047619047619,"));
  EXPECT_THAT(PlanJson("--scheme none --nodes 4 --lost 1"), HasSubstr("\"survival\": 0,"));
  EXPECT_THAT(PlanJson("--scheme ring --nodes 4 --copies 2 --lost 1 --slots 3"), HasSubstr("\"memory_factor\": 6,"));
}

TEST(Plan, ProbabilityOfANodeOrItsRate) {
  const std::string given = PlanJson("--scheme xor --nodes 64 --data 7 --lost 1 --loss-probability 0.001");
  EXPECT_THAT(given, HasSubstr("\"survival_at_probability\": 0.9997769160976"));
  const std::string rate = PlanJson("--scheme xor --nodes 64 --data 7 --lost 1 --mtbf 1000h --window 1h");
  EXPECT_THAT(rate, HasSubstr("\"node_loss_probability\": 0.0009995001666"));  // 1 - exp(-0.001)
}

TEST(Plan, RacksThatMayFail) {
  const std::string apart = PlanJson("--scheme mixed --nodes 16 --copies 2 --lost 1 --per-rack 8");
  EXPECT_THAT(apart, HasSubstr("\"shared_racks\": 0,"));
  EXPECT_THAT(apart, HasSubstr("\"survives_one_rack\": true"));
  const std::string shared = PlanJson("--scheme rs --nodes 16 --data 6 --parity 2 --lost 1 --per-rack 4");
  EXPECT_THAT(shared, HasSubstr("\"shared_racks\": 8,"));  // 2 of 4 in each of 2 groups: as many as may be lost
  EXPECT_THAT(shared, HasSubstr("\"survives_one_rack\": true"));
  const std::string fatal = PlanJson("--scheme rs --nodes 16 --data 6 --parity 2 --lost 1 --per-rack 8");
  EXPECT_THAT(fatal, HasSubstr("\"survives_one_rack\": false"));
  EXPECT_THAT(PlanJson("--scheme none --nodes 16 --lost 1 --per-rack 1"), HasSubstr("\"survives_one_rack\": false"));
}

TEST(Plan, MistakesEndWithTwoAndSayWhatIsWanted) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "plan wants --scheme: one of none group ring mixed xor rs"},
      {"--scheme pairs", "unknown scheme \"pairs\""},
      {"--scheme mixed --nodes 4 --lost 1", "plan wants --copies"},
      {"--scheme mixed --copies 2 --lost 1", "plan wants --nodes"},
      {"--scheme mixed --copies 2 --nodes 4", "plan wants --lost"},
      {"--scheme mixed --copies 2 --nodes 4 --lost 5", "--lost wants a number from 1 to 4, not 5"},
      {"--scheme mixed --copies 2 --nodes 10001 --lost 1", "--nodes wants a number from 1 to 10000"},
      {"--scheme mixed --copies 5 --nodes 4 --lost 1", "needs at least 5 nodes; there are 4"},
      {"--scheme mixed --copies 2 --parity 1 --nodes 4 --lost 1", "takes no --parity: --copies is what it has"},
      {"--scheme group --copies 3 --nodes 16 --lost 1", "do not divide 16 nodes: the scheme mixed takes any number"},
      {"--scheme rs --copies 2 --nodes 4 --lost 1", "takes no --copies: --data and --parity are what it has"},
      {"--scheme rs --data 6 --nodes 16 --lost 1", "plan wants --parity"},
      {"--scheme xor --nodes 16 --lost 1", "plan wants --data"},
      {"--scheme xor --data 7 --parity 2 --nodes 16 --lost 1", "xor has 1 parity, not 2: the scheme rs has more"},
      {"--scheme none --copies 2 --nodes 16 --lost 1", "--scheme none takes no --copies"},
      {"--scheme none --nodes 16 --lost 1 --bytes 2048TiB", "--bytes wants 1 B to 1024.0 TiB"},
      {"--scheme none --nodes 16 --lost 1 --slots 9", "--slots wants a number from 1 to 8"},
      {"--scheme none --nodes 16 --lost 1 --mtbf 1h", "--mtbf and --window go together"},
      {"--scheme none --nodes 16 --lost 1 --mtbf 0s --window 1s", "--mtbf wants a time above 0"},
      {"--scheme none --nodes 16 --lost 1 --loss-probability 2", "--loss-probability wants 0 to 1"},
      {"--scheme none --nodes 16 --lost 1 --mtbf 1h --window 1s --loss-probability 1", "leave it out"},
  };
  for (const auto& [line, sentence] : cases) {
    std::vector<std::string> words = {"plan"};
    for (absl::string_view word : absl::StrSplit(line, ' ', absl::SkipEmpty())) words.emplace_back(word);
    Ran ran = Ctl(words);
    EXPECT_EQ(ran.code, 2) << line;
    EXPECT_THAT(ran.error, HasSubstr(sentence)) << line;
    EXPECT_THAT(ran.error, HasSubstr("\n  next: "));
    EXPECT_EQ(ran.out, "") << line;
  }
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
