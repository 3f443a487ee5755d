// What an operator sees of a live agent: `ckptctl status` and its exit code when something is wrong, /metrics, the web
// pages, and who may connect.
#include <grp.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cctype>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "tests/integration/ctl_fixture.h"
#include "tests/integration/http.h"
#include "tests/integration/tmpfs.h"

namespace ckptd::harness {
namespace {

namespace fs = std::filesystem;

// ------------------------------------------------------------------------------------------------------------ status

class HealthTest : public CkptctlTest {
 protected:
  // Another agent than the fixture's.
  void Restart(const std::map<std::string, std::string>& settings, const std::string& storage = "",
               const std::string& region = "", const std::string& failpoints = "") {
    node_.reset();
    NodeOptions options = Settings();
    options.storage = storage;
    options.region = region;
    options.settings.insert(settings.begin(), settings.end());
    node_ = std::make_unique<Node>(options);
    std::vector<std::string> environment;
    if (!failpoints.empty()) environment.push_back("CKPTD_FAILPOINTS=" + failpoints);
    ASSERT_TRUE(node_->StartAgent(environment)) << node_->AgentLog();
  }
};

TEST_F(HealthTest, AHealthyAgentSaysSo) {
  Train("gpt");
  Said said = Run("status");
  EXPECT_EQ(said.code, 0) << said;
  EXPECT_FALSE(said.Has("problem")) << said;
  Said json = Run("status -o json");
  EXPECT_TRUE(json.Has("\"state\": \"OK\"")) << json;
  EXPECT_TRUE(json.Has("\"problems\": []")) << json;
}

TEST_F(HealthTest, AStorageThatIsNotUsedYetIsTriedAtTheStart) {
  Said json = Run("status -o json");
  for (int i = 0; i < 100 && json.Has("\"state\": \"UNKNOWN\""); ++i) json = Run("status -o json");
  EXPECT_TRUE(json.Has("\"state\": \"OK\"")) << json;
  EXPECT_TRUE(ListFiles(node_->storage()).empty()) << "the attempt leaves nothing";
}

TEST_F(HealthTest, AFullStorageIsAProblemUntilThereIsRoom) {
  Tmpfs tmpfs("2m");
  if (!tmpfs.mounted()) GTEST_SKIP() << kNoMount;
  ASSERT_NO_FATAL_FAILURE(Restart({}, tmpfs.path()));
  auto trainer = node_->Train(Args("--bytes 4000000 --steps 100000 --every 5 --step-ms 5"));
  ASSERT_TRUE(trainer->WaitFor("CAPTURED")) << node_->AgentLog();
  Said full = Await(1);
  EXPECT_EQ(full.code, 1) << full;
  EXPECT_TRUE(full.Has("problem  storage " + tmpfs.path())) << full;
  EXPECT_TRUE(full.Has("next: free space on the storage")) << full;
  EXPECT_TRUE(Run("status -o json").Has("\"state\": \"FULL\""));
  ASSERT_TRUE(tmpfs.Resize("200m"));
  EXPECT_TRUE(trainer->WaitFor("DURABLE")) << node_->AgentLog();
  Said well = Await(0);
  EXPECT_EQ(well.code, 0) << well;
  trainer->Kill();
}

// Nobody saves: the agent finds out by itself, and also when it was mended.
TEST_F(HealthTest, AReadOnlyStorageIsAProblemFromTheStart) {
  Tmpfs tmpfs("20m");
  if (!tmpfs.mounted()) GTEST_SKIP() << kNoMount;
  ASSERT_TRUE(tmpfs.ReadOnly(true, "20m"));
  ASSERT_NO_FATAL_FAILURE(Restart({}, tmpfs.path()));
  Said said = Await(1);
  EXPECT_EQ(said.code, 1) << said;
  EXPECT_TRUE(said.Has("next: remount the storage writable")) << said;
  ASSERT_TRUE(tmpfs.ReadOnly(false, "20m"));
  EXPECT_EQ(Await(0).code, 0);
}

TEST_F(HealthTest, AStorageThatHangsIsAProblem) {
#ifndef CKPTD_FAILPOINTS
  GTEST_SKIP() << "skipped: this build has no failpoints (CKPTD_FAILPOINTS=OFF)";
#endif
  ASSERT_NO_FATAL_FAILURE(Restart({{"storage.timeout", "\"1s\""}}, "", "", "io_queue.transfer=sleep:6000@1"));
  auto trainer = node_->Train(Args("--steps 100000 --every 5 --step-ms 5"));
  ASSERT_TRUE(trainer->WaitFor("CAPTURED")) << node_->AgentLog();
  Said hung = Await(1);
  EXPECT_EQ(hung.code, 1) << hung;
  EXPECT_TRUE(hung.Has("hung: sync ")) << hung;
  EXPECT_TRUE(Run("status -o json").Has("\"state\": \"HUNG\""));
  EXPECT_TRUE(trainer->WaitFor("STEP")) << "training stopped";
  EXPECT_EQ(Await(0).code, 0);
  trainer->Kill();
}

TEST_F(HealthTest, BytesThatWentBadInMemoryAreAProblem) {
  Train("gpt");
  for (const std::string& slot : FilesWith(node_->region(), "/slot-")) FlipByte(node_->region() + "/" + slot, 20000);
  EXPECT_EQ(Run("verify gpt@20").code, 1);
  Said said = Run("status");
  EXPECT_EQ(said.code, 1) << said;
  EXPECT_TRUE(said.Has("held step 20, and its bytes went bad in memory")) << said;
  EXPECT_TRUE(said.Has("next: ckptctl verify")) << said;
}

TEST_F(HealthTest, ALayoutWithoutMemoryIsAProblemOfItsJob) {
  ASSERT_NO_FATAL_FAILURE(Restart({{"region.job_quota", "\"4MiB\""}}));
  auto trainer = node_->Train(Args("--bytes 16000000 --steps 100000 --every 5 --step-ms 5"));
  Said said = Await(1);
  EXPECT_EQ(said.code, 1) << said << node_->AgentLog();
  EXPECT_TRUE(said.Has("problem  job trainer")) << said;
  EXPECT_TRUE(said.Has("next: raise region.job_quota")) << said;
  trainer->Kill();
  EXPECT_EQ(Await(0).code, 0) << "nobody misses it any more";
}

// -------------------------------------------------------------------------------------------------------------- web

// The text format of Prometheus, to the letter: HELP and TYPE once before the samples of a family, which stand
// together; names, labels and escapes by its grammar; no series twice; of a histogram rising buckets, +Inf, sum and
// count.
class Exposition {
 public:
  explicit Exposition(const std::string& text) {
    if (text.empty() || text.back() != '\n') Fail("does not end with a line feed");
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) Line(line);
    EndFamily();
  }
  [[nodiscard]] const std::string& error() const { return error_; }
  [[nodiscard]] double Value(const std::string& series) const {
    const auto found = samples_.find(series);
    return found == samples_.end() ? -1 : found->second;
  }
  [[nodiscard]] size_t families() const { return families_.size(); }

 private:
  void Fail(const std::string& what) {
    if (error_.empty()) error_ = what;
  }
  void Line(const std::string& line) {
    if (line.rfind("# HELP ", 0) == 0) {
      EndFamily();
      family_ = line.substr(7, line.find(' ', 7) - 7);
      if (!families_.insert(family_).second) Fail("family twice: " + family_);
      return CheckName(family_);
    }
    if (line.rfind("# TYPE ", 0) == 0) {
      std::istringstream words(line.substr(7));
      std::string name;
      words >> name >> type_;
      if (name != family_) Fail("TYPE without its HELP: " + line);
      if (type_ != "counter" && type_ != "gauge" && type_ != "histogram") Fail("type: " + line);
      if (type_ == "counter" && !name.ends_with("_total")) Fail("counter without _total: " + name);
      return;
    }
    if (line.empty() || line[0] == '#') return Fail("neither sample nor HELP nor TYPE: " + line);
    Sample(line);
  }

  void Sample(const std::string& line) {
    size_t at = 0;
    while (at < line.size() && line[at] != '{' && line[at] != ' ') ++at;
    const std::string name = line.substr(0, at);
    CheckName(name);
    std::map<std::string, std::string> labels;
    if (at < line.size() && line[at] == '{' && !Labels(line, at, labels)) return Fail("labels: " + line);
    if (at >= line.size() || line[at] != ' ') return Fail("no value: " + line);
    const std::string number = line.substr(at + 1);
    char* end = nullptr;
    const double value = strtod(number.c_str(), &end);
    if (number.empty() || *end != '\0' || std::isspace(static_cast<unsigned char>(number[0])) != 0) {
      return Fail("value: " + line);
    }
    if (!samples_.emplace(line.substr(0, at), value).second) Fail("series twice: " + line);
    Member(name, labels, value, line);
  }

  bool Labels(const std::string& line, size_t& at, std::map<std::string, std::string>& labels) {
    ++at;
    while (at < line.size() && line[at] != '}') {
      const size_t equals = line.find('=', at);
      if (equals == line.npos || equals + 1 >= line.size() || line[equals + 1] != '"') return false;
      const std::string key = line.substr(at, equals - at);
      CheckName(key);
      std::string value;
      size_t i = equals + 2;
      for (; i < line.size() && line[i] != '"'; ++i) {
        if (line[i] == '\\' && (++i >= line.size() || std::string("\\\"n").find(line[i]) == std::string::npos)) {
          return false;
        }
        value += line[i];
      }
      if (i >= line.size() || !labels.emplace(key, value).second) return false;
      at = i + 1;
      if (at < line.size() && line[at] == ',') ++at;
    }
    return at++ < line.size();
  }

  void Member(const std::string& name, std::map<std::string, std::string> labels, double value,
              const std::string& line) {
    if (type_ != "histogram") {
      if (name != family_) Fail("a sample of another family: " + line);
      if (type_ == "counter" && value < 0) Fail("a counter below 0: " + line);
      return;
    }
    const std::string bound = labels["le"];
    labels.erase("le");
    Histogram& histogram = histograms_[labels];
    if (name == family_ + "_bucket") {
      const double le = bound == "+Inf" ? 1e308 : strtod(bound.c_str(), nullptr);
      if (le <= histogram.last_le || value < histogram.last) Fail("buckets do not rise: " + line);
      histogram.last_le = le;
      histogram.last = value;
    } else if (name == family_ + "_count") {
      if (histogram.last_le != 1e308 || value != histogram.last) Fail("count is not the +Inf bucket: " + line);
      histogram.counted = true;
    } else if (name == family_ + "_sum") {
      histogram.summed = true;
    } else {
      Fail("a sample of another family: " + line);
    }
  }

  void EndFamily() {
    for (const auto& [labels, histogram] : histograms_) {
      if (!histogram.counted || !histogram.summed) Fail("a histogram without sum or count: " + family_);
    }
    histograms_.clear();
  }

  void CheckName(const std::string& name) {
    const auto fits = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == ':'; };
    const bool good = !name.empty() && std::isdigit(static_cast<unsigned char>(name[0])) == 0 &&
                      std::all_of(name.begin(), name.end(), fits);
    if (!good) Fail("name: '" + name + "'");
  }

  struct Histogram {
    double last_le = -1e308;
    double last = 0;
    bool counted = false;
    bool summed = false;
  };
  std::string error_;
  std::string family_;
  std::string type_;
  std::set<std::string> families_;
  std::map<std::string, double> samples_;
  std::map<std::map<std::string, std::string>, Histogram> histograms_;
};

// The parser itself: what it must not let pass.
TEST(Exposition, RefusesWhatIsNotInTheFormat) {
  const std::string head = "# HELP a_total x\n# TYPE a_total counter\n";
  EXPECT_EQ(Exposition(head + "a_total{b=\"c\\\"d\"} 1\n").error(), "");
  for (const char* bad : {"a_total 1", "a_total -1\n", "a_total one\n", "b_total 1\n", "a_total{b=c} 1\n", "\n",
                          "a_total{b=\"c} 1\n", "a_total 1\na_total 2\n", "a_total{b=\"\\x\"} 1\n", "# a\n"}) {
    EXPECT_NE(Exposition(head + bad).error(), "") << bad;
  }
  const std::string histogram = "# HELP h x\n# TYPE h histogram\nh_bucket{le=\"1\"} 2\n";
  EXPECT_NE(Exposition(histogram + "h_bucket{le=\"+Inf\"} 1\nh_sum 1\nh_count 1\n").error(), "");
  EXPECT_NE(Exposition(histogram + "h_bucket{le=\"+Inf\"} 2\nh_count 2\n").error(), "");
  EXPECT_EQ(Exposition(histogram + "h_bucket{le=\"+Inf\"} 3\nh_sum 1\nh_count 3\n").error(), "");
}

TEST_F(HealthTest, MetricsAndPagesOfALiveAgent) {
  const uint16_t port = FreePort();
  ASSERT_NO_FATAL_FAILURE(Restart({{"metrics.listen", "\"127.0.0.1:" + std::to_string(port) + "\""}}));
  auto trainer = node_->Train(Args("--job gpt --steps 100000 --every 5 --step-ms 10"));
  ASSERT_TRUE(trainer->WaitFor("DURABLE")) << node_->AgentLog();
  const Answer metrics = Get(port, "/metrics");
  EXPECT_EQ(metrics.status, 200);
  EXPECT_NE(metrics.head.find("text/plain; version=0.0.4"), std::string::npos) << metrics.head;
  const Exposition read(metrics.body);
  EXPECT_EQ(read.error(), "") << metrics.body;
  EXPECT_GT(read.families(), 15u);
  EXPECT_GE(read.Value(R"(ckptd_saves_total{training_job="gpt",result="captured"})"), 1);
  EXPECT_GE(read.Value(R"(ckptd_last_success_step{training_job="gpt",tier="storage"})"), 5);
  EXPECT_EQ(read.Value("ckptd_clients"), 1);
  EXPECT_EQ(read.Value("ckptd_members"), 1);  // itself
  EXPECT_EQ(read.Value("ckptd_member_speaks"), 1);
  EXPECT_EQ(Get(port, "/").status, 200);
  EXPECT_NE(Get(port, "/").body.find("/metrics"), std::string::npos);
  EXPECT_EQ(Get(port, "/healthz").status, 200);
  const Answer status = Get(port, "/status.json");
  EXPECT_EQ(status.status, 200);
  EXPECT_NE(status.body.find("\"name\": \"gpt\""), std::string::npos) << status.body;
  EXPECT_EQ(Get(port, "/nothing").status, 404);
  EXPECT_EQ(Get(port, "/status.json", "evil.example").status, 421) << "a name that was bound to this address elsewhere";
  EXPECT_EQ(Run("drain").code, 0);
  EXPECT_EQ(Get(port, "/healthz").status, 503) << "probes take it out of service";
  trainer->Kill();
}

// Any user may have the port: no reason to have no agent.
TEST_F(HealthTest, AMetricsPortThatIsTakenIsAProblemUntilItIsFree) {
  const int taken = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(bind(taken, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(taken, 1), 0);
  getsockname(taken, reinterpret_cast<sockaddr*>(&address), &size);
  const uint16_t port = ntohs(address.sin_port);
  ASSERT_NO_FATAL_FAILURE(Restart({{"metrics.listen", "\"127.0.0.1:" + std::to_string(port) + "\""}}));
  Train("gpt");
  const Said said = Run("status");
  EXPECT_EQ(said.code, 1) << said;
  EXPECT_TRUE(said.Has("problem  metrics.listen: no pages: bind 127.0.0.1:" + std::to_string(port))) << said;
  EXPECT_TRUE(said.Has("next: checkpoints go on without /metrics")) << said;
  close(taken);
  EXPECT_EQ(Await(0).code, 0);
  EXPECT_EQ(Get(port, "/metrics").status, 200);
}

TEST_F(HealthTest, AnAgentThatStartsAnewCountsNoOldStepAsASuccess) {
  const uint16_t port = FreePort();
  ASSERT_NO_FATAL_FAILURE(Restart({{"metrics.listen", "\"127.0.0.1:" + std::to_string(port) + "\""}}));
  ASSERT_NO_FATAL_FAILURE(Train("gpt"));
  const std::string step = R"(ckptd_last_success_step{training_job="gpt",tier="storage"})";
  const std::string time = "ckptd_last_success_timestamp_seconds{training_job=\"gpt\",tier=";
  const Exposition before(Get(port, "/metrics").body);
  node_->KillAgent();
  sleep(2);
  ASSERT_TRUE(node_->StartAgent()) << node_->AgentLog();
  std::string body = Get(port, "/metrics").body;
  for (int i = 0; i < 100 && Exposition(body).Value(time + "\"region\"}") < 1; ++i) {
    usleep(50'000);
    body = Get(port, "/metrics").body;
  }
  const Exposition after(body);
  EXPECT_EQ(after.Value(step), 20) << body;
  for (const char* tier : {"\"region\"}", "\"storage\"}"}) {
    EXPECT_LE(after.Value(time + tier), before.Value(time + tier)) << body;
    EXPECT_GE(after.Value(time + tier), before.Value(time + tier) - 1) << body;
  }
}

TEST_F(HealthTest, MetricsOfAJobGoAndComeWithIt) {
  const uint16_t port = FreePort();
  ASSERT_NO_FATAL_FAILURE(Restart({{"metrics.listen", "\"127.0.0.1:" + std::to_string(port) + "\""}}));
  for (int i = 0; i < 2; ++i) {
    auto trainer = node_->Train(Args("--job gpt --want fresh --steps 20 --every 5 --step-ms 40"));
    ASSERT_EQ(trainer->Wait(), 0) << trainer->Errors() << node_->AgentLog();
    const Exposition there(Get(port, "/metrics").body);
    EXPECT_GE(there.Value(R"(ckptd_saves_total{training_job="gpt",result="captured"})"), 1);
    EXPECT_LE(there.Value(R"(ckptd_saves_total{training_job="gpt",result="captured"})"), 4) << "counted from before";
    EXPECT_EQ(Run("gc gpt").code, 0);
    const Answer gone = Get(port, "/metrics");
    EXPECT_EQ(Exposition(gone.body).error(), "") << gone.body;
    EXPECT_EQ(gone.body.find("gpt"), std::string::npos) << gone.body;
  }
}

// --------------------------------------------------------------------------------------------------- who may connect

TEST_F(HealthTest, TheSocketsGroupMayConnectAndOthersMayNot) {
  if (geteuid() != 0) GTEST_SKIP() << "skipped: needs root, to become another user";
  const group* some = getgrgid(1);
  if (some == nullptr) GTEST_SKIP() << "skipped: no group with gid 1";
  ASSERT_NO_FATAL_FAILURE(Restart(
      {{"security.socket_group", std::string("\"") + some->gr_name + "\""}, {"security.socket_mode", "\"0660\""}}));
  const std::string line = "--job theirs --steps 20 --every 5 --step-ms 5 --restore-ms 2000";
  auto member = node_->Train(Args(line), AsUser("65534", "1"));
  EXPECT_EQ(member->Wait(), 0) << member->Errors() << node_->AgentLog();
  const uint64_t saved = member->Last("DURABLE");  // a slow disk costs saves
  EXPECT_GT(saved, 0u);
  auto second = node_->Train(Args(line), AsUser("65534", "65534", "1"));
  EXPECT_EQ(second->Wait(), 0) << second->Errors();
  EXPECT_GE(NumberField(Restored(*second), "step"), saved);
  auto stranger = node_->Train(Args(line), AsUser("65534", "65534"));
  EXPECT_EQ(stranger->Wait(), 1);
  EXPECT_NE(stranger->Errors().find("no permission to connect to " + node_->socket()), std::string::npos)
      << stranger->Errors();
  Said admin = Run("status", {"setpriv", "--reuid", "65534", "--regid", "1", "--clear-groups"});
  EXPECT_EQ(admin.code, 0) << admin;
}

}  // namespace
}  // namespace ckptd::harness
