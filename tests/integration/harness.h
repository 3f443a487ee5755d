// One node of a test: an agent with its own socket, region (under /dev/shm) and storage, and the trainers on it. All of
// it is gone when the Node is.
#ifndef CKPTD_TESTS_INTEGRATION_HARNESS_H_
#define CKPTD_TESTS_INTEGRATION_HARNESS_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/integration/process.h"

namespace ckptd::harness {

struct NodeOptions {
  std::string region;                           // "" = a fresh folder under /dev/shm
  std::string storage;                          // "" = a fresh folder
  std::map<std::string, std::string> settings;  // "section.key" -> TOML value, beside those of the node
  std::vector<std::string> agent_prefix = {};   // what the agent's command line begins with
  bool tiny_trainer = true;                     // --tensors 4 --bytes 65536, unless the arguments say otherwise
};

class Node {
 public:
  explicit Node(const NodeOptions& options = {});
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // Starts the agent and waits until it says that it is ready (sd_notify). False: it ended or hangs; see AgentLog().
  [[nodiscard]] bool StartAgent(std::vector<std::string> environment = {});
  // How long the last StartAgent took.
  [[nodiscard]] Millis start_time() const { return start_time_; }
  void KillAgent();  // SIGKILL, reaped; a failure of the test when it had ended by itself before
  // SIGTERM: flushes and ends; the exit status.
  int StopAgent(Millis timeout = kLong);
  // The agent is the caller's, and another may be started.
  [[nodiscard]] std::unique_ptr<Child> TakeAgent() { return std::move(agent_); }
  [[nodiscard]] Child* agent() const { return agent_.get(); }
  [[nodiscard]] std::string AgentLog() const;

  // `ckpt-trainer --socket ... ARGUMENTS`, one --flag value string per element or as pairs.
  std::unique_ptr<Child> Train(const std::vector<std::string>& arguments, std::vector<std::string> prefix = {});
  // The DIGEST line of a run that nobody disturbs: rank, seed, steps, tensors and bytes decide it. Cached.
  std::string ExpectedDigest(const std::vector<std::string>& arguments);

  [[nodiscard]] const std::string& base() const { return base_; }
  [[nodiscard]] const std::string& region() const { return region_; }
  [[nodiscard]] const std::string& storage() const { return storage_; }
  [[nodiscard]] std::string socket() const { return base_ + "/s"; }
  void LoseRegion() const;  // as after a reboot

 private:
  void WriteConfig(const NodeOptions& options) const;
  bool AwaitReady(int notify, Millis timeout) const;
  [[nodiscard]] std::vector<std::string> Defaults(const std::vector<std::string>& arguments) const;

  std::string base_;
  std::string region_;
  std::string storage_;
  std::vector<std::string> agent_prefix_;
  bool tiny_ = true;
  int trainers_ = 0;
  Millis start_time_{0};
  std::unique_ptr<Child> agent_;
  std::map<std::string, std::string> digests_;
};

// Regular files below `directory`, relative, sorted.
std::vector<std::string> ListFiles(const std::string& directory);
// Those of ListFiles that contain `part`.
std::vector<std::string> FilesWith(const std::string& directory, const std::string& part);
// Step folders of a one-rank `job` that are committed, or will be by the next attempt, oldest first: (step, folder).
std::vector<std::pair<uint64_t, std::string>> WholeSteps(const Node& node, const std::string& job = "trainer");

void FlipByte(const std::string& file, uint64_t offset);
void FillWithGarbage(const std::string& file, uint64_t seed);

// Splits "--job j --steps 10".
std::vector<std::string> Args(const std::string& line);

// Nothing temporary and nothing unnamed is left in region and storage: one ctl file of `slots` slots for each rank.
void ExpectNothingLeftBehind(const Node& node, size_t ranks = 1, size_t slots = 2);

// $TSAN_OPTIONS for an agent that may end past its deadline without joining, as it must: no leak.
[[nodiscard]] std::string ThreadsMayBeLeft();

// The RESTORED line of a trainer that runs or ran, or a failure of the test with what it said.
std::string Restored(Child& trainer, Millis timeout = kLong);

}  // namespace ckptd::harness

#endif  // CKPTD_TESTS_INTEGRATION_HARNESS_H_
