// What stands between a hostile local user and everybody else: an agent that other users may connect to, a neighbour
// that trains on it all the while, and intruders (intruder.h). After each act the agent lives and holds no more than
// before, and the neighbour has gone on saving; in the end its state is restored, each element compared.
#ifndef CKPTD_TESTS_INTEGRATION_HOSTILE_H_
#define CKPTD_TESTS_INTEGRATION_HOSTILE_H_

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/integration/harness.h"
#include "tests/integration/intruder.h"
#include "tests/integration/raw_trainer.h"

namespace ckptd::harness {

class Hostile : public ::testing::Test {
 protected:
  void SetUp() override;
  // Judges the neighbour and prints how many acts were tried and how many went wrong.
  void TearDown() override;

  // What the agent holds while nobody asks for anything.
  struct Held {
    size_t descriptors = 0;  // but for those of slots: their number changes while one is being replaced
    size_t of_region = 0;    // and not of a job enemy...: what that has registered stays, within its limits
    Usage usage;
  };
  [[nodiscard]] Held AtRest();
  [[nodiscard]] std::vector<std::string> NotOfRegion() const;
  // `act` as another user; what it heard. The neighbour goes on saving meanwhile, and afterwards the agent lives. The
  // intruder is ended and what it held has to come back, unless the caller does that.
  std::string Try(const std::string& name, const std::function<std::string()>& act);
  std::unique_ptr<Intruder> Begin(const std::string& name, const std::function<std::string()>& act, std::string* said);
  void EndAndCount(std::unique_ptr<Intruder> intruder);
  // One act whose outcome is judged here: wrong unless it heard `expected`.
  void ExpectHears(const std::string& name, const std::string& expected, const std::function<std::string()>& act);

  [[nodiscard]] NodeOptions Options() const;
  virtual void Configure(NodeOptions* /*options*/) {}

  std::unique_ptr<Node> node_;
  std::unique_ptr<Child> neighbour_;
  std::string socket_;  // for acts: they run in another process
  Held before_;
  uint64_t tried_ = 0;
  uint64_t wrong_ = 0;
  bool memory_lost_ = false;  // the region was: what was not durable is gone
  Millis longest_gap_{0};     // between two captures of the neighbour, while somebody acted

 private:
  void Judge(const std::string& name);
  void WatchNeighbour(const std::string& name, Intruder& intruder);
};

}  // namespace ckptd::harness

#endif  // CKPTD_TESTS_INTEGRATION_HOSTILE_H_
