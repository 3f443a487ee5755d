// A node whose agent answers ckptctl, and jobs that a real trainer saved.
#ifndef CKPTD_TESTS_INTEGRATION_CTL_FIXTURE_H_
#define CKPTD_TESTS_INTEGRATION_CTL_FIXTURE_H_

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "tests/integration/harness.h"

namespace ckptd::harness {

struct Said {
  int code = 0;
  std::string out;
  std::string error;
  [[nodiscard]] bool Has(const std::string& text) const { return out.find(text) != std::string::npos; }
  [[nodiscard]] bool ErrorHas(const std::string& text) const { return error.find(text) != std::string::npos; }
};

inline std::ostream& operator<<(std::ostream& stream, const Said& said) {
  return stream << "exit " << said.code << "\n" << said.out << said.error;
}

class CkptctlTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/ckptd-ctl-XXXXXX";
    dir_ = mkdtemp(name);
    chmod(dir_.c_str(), 0755);
    node_ = std::make_unique<Node>(Settings());
    ASSERT_TRUE(node_->StartAgent()) << node_->AgentLog();
  }
  // Of an agent that Run() asks.
  [[nodiscard]] NodeOptions Settings(const std::string& keep_last = "4") const {
    NodeOptions options;
    options.settings["agent.admin_socket"] = "\"" + admin() + "\"";
    options.settings["retention.keep_last"] = keep_last;
    return options;
  }
  void TearDown() override {
    node_.reset();
    std::filesystem::remove_all(dir_);
  }

  [[nodiscard]] std::string admin() const { return dir_ + "/admin.sock"; }

  Said Run(const std::string& line, std::vector<std::string> prefix = {}) {
    std::vector<std::string> argv = std::move(prefix);
    argv.push_back(BinaryDirectory() + "/ckptctl");
    for (const std::string& word : Args(line)) argv.push_back(word);
    const std::string errors = dir_ + "/stderr";
    std::filesystem::remove(errors);
    Child child({argv, {"CKPTD_ADMIN_SOCKET=" + admin(), "NO_COLOR=1"}, errors});
    Said said;
    said.code = child.Wait();
    for (const std::string& each : child.lines()) said.out += each + "\n";
    said.error = FileContent(errors);
    return said;
  }

  // Asks until the exit code is `code`, for 15 s at most; what was said last.
  Said Await(int code, const std::string& question = "status") {
    Said said = Run(question);
    for (int i = 0; i < 150 && said.code != code; ++i) {
      usleep(100'000);
      said = Run(question);
    }
    return said;
  }

  // The trainer has ended; step 20 is durable, and older_ before it. (Under load a save may be dropped.)
  void Train(const std::string& job) {
    auto trainer = node_->Train(Args("--job " + job + " --steps 20 --every 5 --step-ms 40"));
    ASSERT_EQ(trainer->Wait(), 0) << trainer->Errors() << node_->AgentLog();
    ASSERT_EQ(trainer->Last("DURABLE"), 20u);
    for (const std::string& line : trainer->lines()) {
      if (line.rfind("DURABLE ", 0) != 0) continue;
      const uint64_t step = std::strtoull(line.c_str() + sizeof "DURABLE", nullptr, 10);
      if (step < 20) older_ = step;
    }
    ASSERT_NE(older_, 0u);
  }
  [[nodiscard]] std::string Older(const std::string& job) const { return job + "@" + std::to_string(older_); }

  [[nodiscard]] std::string StepDir(const std::string& job, uint64_t step) const {
    char name[64];
    snprintf(name, sizeof name, "/step-%010llu.a0001", static_cast<unsigned long long>(step));
    return node_->storage() + "/" + job + name;
  }
  [[nodiscard]] static std::string Image(const std::string& dir) { return dir + "/rank-00000-of-00001.safetensors"; }
  static std::string Content(const std::string& file) { return FileContent(file); }

  std::string dir_;
  std::unique_ptr<Node> node_;
  uint64_t older_ = 0;
};

}  // namespace ckptd::harness

#endif  // CKPTD_TESTS_INTEGRATION_CTL_FIXTURE_H_
