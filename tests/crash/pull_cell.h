// One cell of the pull matrix: an agent with a bystander's session and a trainer that pulls, one blow at one step of
// the protocol, and what must hold afterwards. Everything is a real process on the host device.
#ifndef CKPTD_TESTS_CRASH_PULL_CELL_H_
#define CKPTD_TESTS_CRASH_PULL_CELL_H_

#include <memory>
#include <string>
#include <vector>

#include "client/core/wire/fds.h"
#include "tests/integration/harness.h"

namespace ckptd::harness {

// Processes of this program that have `variable` ("NAME=value") in their environment.
std::vector<pid_t> ProcessesWith(const std::string& program, const std::string& variable);

// What befalls whom. A stop lasts longer than the gate's deadline. Corrupt: random words over the memory that the
// victim may write, or packets that it would never send, while it is stopped; then it goes on.
enum class Blow {
  kKillCopier,
  kStopCopier,
  kStopThenKillCopier,
  kGarbageOfCopier,
  kWrongAnswersOfCopier,
  kScribbledGate,
  kScribbledBell,
  kKillAgent,
  kStopAgent,
  kScribbledControl,
  kKillBoth,
  kStopBoth,
  kScribbledBoth,
};
inline constexpr Blow kBlows[] = {Blow::kKillCopier,
                                  Blow::kStopCopier,
                                  Blow::kStopThenKillCopier,
                                  Blow::kGarbageOfCopier,
                                  Blow::kWrongAnswersOfCopier,
                                  Blow::kScribbledGate,
                                  Blow::kScribbledBell,
                                  Blow::kKillAgent,
                                  Blow::kStopAgent,
                                  Blow::kScribbledControl,
                                  Blow::kKillBoth,
                                  Blow::kStopBoth,
                                  Blow::kScribbledBoth};
const char* NameOf(Blow blow);

struct CellPlan {
  std::string point;  // of CKPTD_COPIER_FP, or "idle": stopped while it waits for a request
  Blow blow;
  bool armed;  // the trainer's stream waits at the gate when it strikes
  bool vmm;    // the memory outlives its trainer, and the copier moves the capture word

  [[nodiscard]] std::string name() const;
  [[nodiscard]] bool in_preparation() const;  // before the first COPY
};

class PullCell {
 public:
  explicit PullCell(const CellPlan& plan);
  ~PullCell();

  // Every failure is one of the running test, with the cell's name.
  void Run();
  // What the gate and the stream of one step were held up most.
  [[nodiscard]] Millis longest() const { return longest_; }
  [[nodiscard]] bool dropped() const { return drops_ > 0; }

  static constexpr Millis kGate{400};

 private:
  bool Begin();
  bool ReachPoint();
  bool AwaitStopped();
  void Strike();
  void StopAgent(bool copier_too);
  void KillAgent();
  void Send(const std::vector<std::string>& packets);
  [[nodiscard]] uint64_t AwaitedSerial() const;
  void KeepGateShut();
  void Scribble(const std::vector<std::string>& parts);
  bool GoOn();
  void JudgeTrainer();
  void JudgeBystander();
  void JudgeRest();
  void Arm();
  [[nodiscard]] bool Copier(int signal) const;
  [[nodiscard]] bool Await(const char* line, const char* what);
  [[nodiscard]] std::string Tell() const;

  const CellPlan plan_;
  Node node_;
  std::string points_;  // the folder of armed points
  std::string variable_;
  std::unique_ptr<Child> bystander_;
  std::unique_ptr<Child> trainer_;
  pid_t copier_ = 0;
  UniqueFd copier_fd_;  // pidfd
  uint64_t struck_ = 0;
  uint64_t pulled_ = 0;
  uint64_t bystanders_ = 0;  // newest captured step when it struck
  size_t drops_ = 0;
  Usage agent_before_;
  bool agent_restarted_ = false;
  Millis longest_{0};
};

}  // namespace ckptd::harness

#endif  // CKPTD_TESTS_CRASH_PULL_CELL_H_
