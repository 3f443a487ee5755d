#include "tools/ckptctl/command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <utility>

#include "absl/strings/str_split.h"
#include "daemon/os/testing/temp_dir.h"

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
  EXPECT_EQ(names, "status list inspect verify flush drain restore trace salvage pin unpin rm gc plan certs version ");
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

class CertsCommand : public ::testing::Test {
 protected:
  Ran Certs(const std::string& line) {
    std::vector<std::string> words = {"certs"};
    for (absl::string_view word : absl::StrSplit(line, ' ', absl::SkipEmpty())) words.emplace_back(word);
    words.push_back("--dir=" + dir_);
    return Ctl(words);
  }

  TempDir temp_;
  const std::string dir_ = temp_.path() + "/made/ca";
};

TEST_F(CertsCommand, FromAnAuthorityToNodesAndTheirFiles) {
  const Ran init = Certs("init --cluster ml");
  EXPECT_EQ(init.code, 0) << init.error;
  EXPECT_THAT(init.out, HasSubstr("Next: ckptctl certs node NAME --dir " + dir_ + "\n"));
  const Ran node = Certs("node n[08-10] gpu");
  EXPECT_EQ(node.code, 0) << node.error;
  for (const char* text : {"node n08 of cluster ml: ", "node n10 of", "node gpu of", "/nodes/NAME.key  as ",
                           "/ca.key never leaves.\n", "[peers]\ncluster = \"ml\"\ntls_ca = \"/etc/ckptd/tls/ca.pem\"\n",
                           "tls_cert = \"/etc/ckptd/tls/node.pem\"\n", "tls_key = \"/etc/ckptd/tls/node.key\"\n"})
    EXPECT_THAT(node.out, HasSubstr(text));
  const Ran show = Certs("show");
  EXPECT_EQ(show.code, 0) << show.out;
  EXPECT_THAT(show.out, HasSubstr("the authority  ml "));
  EXPECT_THAT(show.out, HasSubstr("n09            ml "));
}

TEST_F(CertsCommand, AClusterThatIsNotNamedIsTheOneOfTheConfiguration) {
  EXPECT_EQ(Certs("init").code, 0);
  const Ran node = Certs("node n1");
  EXPECT_THAT(node.out, HasSubstr("node n1 of cluster default"));
  EXPECT_THAT(node.out, HasSubstr("[peers]\ntls_ca = "));
}

TEST_F(CertsCommand, WhatEndsSoonIsShownAndRenewed) {
  ASSERT_EQ(Certs("init").code + Certs("node n1 --days 7").code + Certs("node n2 --days 8").code, 0);
  const Ran before = Certs("show");
  EXPECT_EQ(before.code, 1);
  EXPECT_THAT(before.out, HasSubstr("ends soon  " + dir_ + "/nodes/n1.pem"));
  EXPECT_THAT(Certs("show -o json").out, HasSubstr("\"problem\": \"ends soon\""));
  EXPECT_EQ(Ctl({"certs", "show", dir_ + "/nodes/n1.pem"}).code, 1);
  EXPECT_EQ(Ctl({"certs", "show", dir_ + "/nodes/n2.pem"}).code, 0);
  EXPECT_THAT(Certs("rotate --within 7d").out, HasSubstr("1 of 2 renewed"));
  EXPECT_EQ(Certs("show").code, 0);
  EXPECT_THAT(Certs("rotate --within 200h").out, HasSubstr("1 of 2 renewed")) << "n2";
  EXPECT_THAT(Certs("rotate --within 30d").out, HasSubstr("0 of 2 renewed"));
  EXPECT_THAT(Certs("rotate n2").out, HasSubstr("1 of 1 renewed"));
}

// A rotation that was cut off between the key and its certificate.
TEST_F(CertsCommand, AKeyThatDoesNotFitIsShownAndRenewedHoweverLongItLasts) {
  ASSERT_EQ(Certs("init").code + Certs("node n1 n2").code, 0);
  std::filesystem::copy_file(dir_ + "/nodes/n2.key", dir_ + "/nodes/n1.key",
                             std::filesystem::copy_options::overwrite_existing);
  const Ran show = Certs("show");
  EXPECT_EQ(show.code, 1);
  EXPECT_THAT(show.out, HasSubstr("the key beside it is another's"));
  EXPECT_THAT(Certs("rotate --within 1d").out, HasSubstr("1 of 2 renewed"));
  EXPECT_EQ(Certs("show").code, 0);
}

TEST_F(CertsCommand, NothingThatIsThereIsReplacedButByRotate) {
  ASSERT_EQ(Certs("init").code + Certs("node n1").code, 0);
  EXPECT_EQ(Certs("init").code, 6);
  const Ran again = Certs("node n0 n1");
  EXPECT_EQ(again.code, 6);
  EXPECT_THAT(again.error, HasSubstr("ckptctl certs rotate n1 renews it"));
  EXPECT_FALSE(std::filesystem::exists(dir_ + "/nodes/n0.pem")) << "none is made where not all can be";
  EXPECT_EQ(Certs("node ca --out=" + dir_).code, 6);
  EXPECT_EQ(Certs("rotate ca --out=" + dir_).code, 6);
  EXPECT_EQ(Certs("node n2 --cluster other").code, 6);
  EXPECT_EQ(Certs("show").code, 0);
}

TEST_F(CertsCommand, MistakesEndWithTheNextStep) {
  EXPECT_EQ(Certs("node n1").code, 4);
  EXPECT_THAT(Certs("node n1").error, HasSubstr("ckptctl certs init --dir " + dir_));
  EXPECT_EQ(Certs("show").code, 4);
  ASSERT_EQ(Certs("init").code, 0);
  EXPECT_EQ(Certs("rotate").code, 4);
  EXPECT_EQ(Certs("rotate n1").code, 4);
  const std::pair<const char*, const char*> cases[] = {
      {"", "an argument is missing"},
      {"shwo", "did you mean show?"},
      {"node", "certs node wants the names of nodes"},
      {"node a/b", "node name \"a/b\""},
      {"node n1 n[1-2]", "node n1 is named twice"},
      {"node n[1-10001]", "hostlist"},
      {"node n1 --days 0", "--days wants a number from 1 to 36500"},
      {"node n1 --within 3d", "certs node takes no --within"},
      {"init --cluster a/b --dir=", "--dir is given twice"},
      {"init n1", "certs init takes no n1"},
      {"rotate --within d", "--within wants a time such as 30d"},
      {"rotate --within -1d", "--within wants a time such as 30d"},
      {"rotate --within 3w", "--within"},
      {"show -o xml", "-o wants table or json"},
      {"show x.pem", "certs show takes no --dir"},
  };
  for (const auto& [line, sentence] : cases) {
    const Ran ran = line[0] == '\0' ? Ctl({"certs"}) : Certs(line);
    EXPECT_EQ(ran.code, 2) << line;
    EXPECT_THAT(ran.error, HasSubstr(sentence)) << line;
  }
  EXPECT_EQ(Ctl({"certs", "init", "--cluster", "a/b", "--dir", temp_.path() + "/other"}).code, 2);
  EXPECT_FALSE(std::filesystem::exists(temp_.path() + "/other"));
}

}  // namespace
}  // namespace ckptd
