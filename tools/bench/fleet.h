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

namespace ckptd::bench {

class Fleet {
 public:
  // `ranks` in all, `per_agent` on each agent, the first of which coordinates.
  Fleet(uint32_t ranks, uint32_t per_agent);
  ~Fleet();

  // Every rank calls restore(), one after the other on its agent, all agents side by side; until all of them run.
  void Restore();
  // Every rank captures `step` and writes it, each of which its agent tells at once; until it is durable.
  void Save(uint64_t step);

  [[nodiscard]] bool runs() const;
  [[nodiscard]] uint64_t durable() const;
  // Since the start.
  [[nodiscard]] Nanos spent() const { return spent_; }
  [[nodiscard]] uint64_t sent_bytes() const { return sent_bytes_; }
  [[nodiscard]] uint64_t sent_messages() const { return sent_messages_; }
  [[nodiscard]] uint64_t received_messages() const { return received_messages_; }

 private:
  struct Agent;

  void Feed(const job::Event& event);
  void Step(const job::Event& event);
  void Take(const job::Effect& effect);
  void FireTimers();
  void Report(Agent& agent);
  template <typename Change>
  void ChangeEach(const Change& change);

  const uint32_t per_agent_;
  std::vector<std::unique_ptr<Agent>> agents_;
  std::map<std::string, Agent*> by_name_;
  std::unique_ptr<job::Machine> machine_;
  std::deque<job::Event> events_;
  std::vector<job::StartTimer> timers_;
  v1::DecisionRecord decision_;
  Nanos spent_{0};
  uint64_t sent_bytes_ = 0;
  uint64_t sent_messages_ = 0;
  uint64_t received_messages_ = 0;
};

}  // namespace ckptd::bench

#endif  // CKPTD_TOOLS_BENCH_FLEET_H_
