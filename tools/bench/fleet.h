// A job of many ranks as its coordinator sees it: the real machine of daemon/job, fed by simulated agents that follow
// the protocol and cost nothing. What is timed is the machine: the time inside its steps, and what it waits for its own
// timers. Storage answers at once.
#ifndef CKPTD_TOOLS_BENCH_FLEET_H_
#define CKPTD_TOOLS_BENCH_FLEET_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "daemon/base/clock.h"
#include "daemon/job/machine.h"
#include "daemon/transport/link_message.h"

namespace ckptd::bench {

class Fleet {
 public:
  struct Options {
    uint32_t ranks = 8;
    uint32_t per_agent = 8;  // on each agent, the first of which coordinates
    uint32_t copies = 0;     // of job::Config: each agent has what the one before it in its group has sealed
    uint32_t parity = 0;     // instead of copies
    uint32_t data = 0;       // with it, of each group of nodes
    bool wire = false;       // messages are serialised and parsed
    uint32_t batches = 1;    // in so many parts a change of all ranks comes, with time between them to act upon each
    int slots = 2;           // so many snapshots each rank keeps
  };
  explicit Fleet(const Options& options);
  ~Fleet();

  // Every rank calls restore(), one after the other on its agent, all agents side by side; until all of them run.
  void Restore();
  // Every rank captures `step` and writes it, each of which its agent tells at once; until it is durable.
  void Save(uint64_t step);
  // Every rank has captured `step`, and it is protected; nobody has told it yet.
  void Hold(uint64_t step);
  // All trainers end, and the memory of the last `nodes` is empty. Restore() may follow.
  void Lose(uint32_t nodes);

  [[nodiscard]] bool runs() const;
  [[nodiscard]] uint64_t durable() const;
  [[nodiscard]] uint64_t protected_step() const;
  [[nodiscard]] uint64_t restored_step() const;
  // Of the newest step that the last restore passed over; empty: of none.
  [[nodiscard]] std::string why_skipped() const;
  // Since the start. `spent`: with the waits; `cpu`: without.
  [[nodiscard]] Nanos spent() const { return spent_; }
  [[nodiscard]] Nanos cpu() const { return cpu_; }
  // From the last REPORT of all that waits (Restore), or is written (Save), until what follows is said to all.
  [[nodiscard]] Nanos decided_after() const { return decided_after_; }
  [[nodiscard]] uint64_t sent_bytes() const { return sent_bytes_; }
  [[nodiscard]] uint64_t sent_messages() const { return sent_messages_; }
  [[nodiscard]] uint64_t received_messages() const { return received_messages_; }
  [[nodiscard]] uint64_t received_bytes() const { return received_bytes_; }

 private:
  struct Agent;

  void Feed(const job::Event& event);
  void Step(const job::Event& event);
  void Take(const job::Effect& effect);
  void Store(const job::Effect& effect);
  void TakeState(const job::SendState& effect);
  void FireTimers();
  void Answer();
  void Report(Agent& agent);
  void HearReport(const v1::Report& report);
  void Tell(Agent& agent, uint32_t rank);
  template <typename Work>
  auto Timed(const Work& work);
  template <typename Change>
  void ChangeEach(const Change& change);
  void PlaceCopies();
  void PlaceParity();
  void ProtectEach(const SnapshotId& id);
  void TellCopies(AttemptId attempt);
  void KeepProtecting(Agent& agent, size_t i, const SnapshotId& id);
  [[nodiscard]] bool protecting() const { return options_.copies > 1 || options_.parity > 0; }

  const Options options_;
  std::vector<std::unique_ptr<Agent>> agents_;
  std::map<std::string, Agent*> by_name_;
  std::unique_ptr<job::Machine> machine_;
  std::deque<job::Event> events_;
  std::vector<job::StartTimer> timers_;
  transport::RecentStates recent_states_;
  // The storage.
  std::vector<v1::AttemptRecord> records_;
  std::vector<v1::DecisionRecord> decisions_;
  std::vector<job::StoredStep> steps_;
  uint32_t restores_ = 0;
  AttemptId copies_told_ = 0;  // by the coordinator's agent
  Nanos spent_{0};
  Nanos cpu_{0};
  Nanos decided_after_{0};
  uint64_t sent_bytes_ = 0;
  uint64_t sent_messages_ = 0;
  uint64_t received_messages_ = 0;
  uint64_t received_bytes_ = 0;
};

}  // namespace ckptd::bench

#endif  // CKPTD_TOOLS_BENCH_FLEET_H_
