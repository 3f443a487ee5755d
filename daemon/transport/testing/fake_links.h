// Links of many nodes inside one test, for the rooms above: loses, doubles, delays and cuts as it is told, by a seed,
// so that a run can be had again. Nothing happens but in Run: no thread, no clock.
//
//   FakeNetwork network(seed);
//   auto links = network.Join("n1", "n1-agent", sink);
//   links->SetPeers({{"n2", ""}});
//   (void)links->Send("n2", message);
//   network.Run(now);   // and again at network.NextDue()
#ifndef CKPTD_DAEMON_TRANSPORT_TESTING_FAKE_LINKS_H_
#define CKPTD_DAEMON_TRANSPORT_TESTING_FAKE_LINKS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>

#include "daemon/transport/links.h"

namespace ckptd::transport {

struct FakeFaults {
  double lose = 0;   // part of the messages that goes astray
  double twice = 0;  // part that comes twice
  Nanos least{0};    // each comes after a time between these two, so that they overtake each other
  Nanos most{0};
};

class FakeLinks;

// One thread. Outlives the links that it makes.
class FakeNetwork {
 public:
  explicit FakeNetwork(uint64_t seed) : random_(seed) {}

  // A node of this name. It leaves with its links, and loses what was on its way to it; the same name may join again.
  [[nodiscard]] std::unique_ptr<Links> Join(const std::string& name, const std::string& agent, LinkSink& sink);

  void SetFaults(const FakeFaults& faults) { faults_ = faults; }
  // Nothing passes between the two, either way: the newest of each job and kind waits, what was on its way is lost.
  void Cut(const std::string& a, const std::string& b, bool cut);

  // Sends what waits, and lets come what is due, in that order, until nothing is due; says how many came.
  size_t Run(Nanos now);
  // When something will be due.
  [[nodiscard]] std::optional<Nanos> NextDue() const;

 private:
  friend class FakeLinks;

  struct Flight {
    std::string from;
    std::string to;
    LinkMessage message;
  };

  [[nodiscard]] bool IsCut(const std::string& a, const std::string& b) const;
  [[nodiscard]] bool Chance(double part);
  void SendAll(Nanos now);
  void Fly(Nanos now, const Flight& flight);
  bool Arrive(const Flight& flight);

  std::mt19937_64 random_;
  FakeFaults faults_;
  std::map<std::string, FakeLinks*> nodes_;
  std::set<std::pair<std::string, std::string>> cuts_;
  std::multimap<Nanos, Flight> flights_;
};

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_TESTING_FAKE_LINKS_H_
