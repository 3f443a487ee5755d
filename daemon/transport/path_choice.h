// Which of several ways the bytes of a Move take to a peer: the one that was fastest lately, as measured by the moves
// themselves. What else uses the network or the cores at that time is in what they measure.
//
//   not measured   tried once, the best guess first (the order of BulkWay)
//   in use         stays until another one is kMargin times as fast: two that are about as fast do not take turns
//   not in use     tried again after kStale, when it was no worse than kHopeless of the one in use: loads change
//   failed         what is known of it is forgotten; whoever keeps the routes lets it rest (bulk_routes.h)
//
// A speed is the mean of the last moves, each new one counting for kWeight, and for all after kStale without any. Moves
// of less than kTelling say more of greetings than of speed and do not count. Pure; one thread.
#ifndef CKPTD_DAEMON_TRANSPORT_PATH_CHOICE_H_
#define CKPTD_DAEMON_TRANSPORT_PATH_CHOICE_H_

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "daemon/base/clock.h"
#include "daemon/base/units.h"
#include "daemon/transport/bulk_way.h"

namespace ckptd::transport {

class PathChoice {
 public:
  static constexpr double kMargin = 1.25;
  static constexpr double kHopeless = 0.5;
  static constexpr double kWeight = 0.3;
  static constexpr uint64_t kTelling = 4 * kMiB;
  static constexpr Nanos kStale = std::chrono::minutes(10);

  // For the next Move to the peer; `open`: at least one.
  [[nodiscard]] BulkWay Choose(const std::string& peer, const std::vector<BulkWay>& open, Nanos now);
  // So many bytes were verified at the other end, in so long.
  void Moved(const std::string& peer, BulkWay way, uint64_t bytes, Nanos took, Nanos now);
  void Failed(const std::string& peer, BulkWay way);

  struct Speed {
    std::string peer;
    BulkWay way = BulkWay::kGrpc;
    double bytes_per_second = 0;
    bool in_use = false;
  };
  // By peer, what was measured.
  [[nodiscard]] std::vector<Speed> Speeds() const;
  // What is told of a peer that was forgotten does not count, until a way to it is chosen again.
  void ForgetOthers(const std::function<bool(const std::string& name)>& is_peer);

 private:
  struct Measured {
    std::optional<double> speed;  // bytes a second
    Nanos tried{0};               // chosen last
    Nanos measured{0};
  };
  struct Peer {
    std::array<Measured, kBulkWays> ways;
    std::optional<BulkWay> in_use;
    [[nodiscard]] Measured& Of(BulkWay way) { return ways[static_cast<size_t>(way)]; }
  };

  [[nodiscard]] static std::optional<BulkWay> ToTry(Peer& peer, const std::vector<BulkWay>& open, Nanos now);
  [[nodiscard]] static BulkWay Fastest(Peer& peer, const std::vector<BulkWay>& open);

  std::map<std::string, Peer> peers_;  // as many as members
};

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_PATH_CHOICE_H_
