#include "daemon/transport/path_choice.h"

#include <algorithm>

namespace ckptd::transport {

BulkWay PathChoice::Choose(const std::string& peer, const std::vector<BulkWay>& open, Nanos now) {
  Peer& of = peers_[peer];
  const std::optional<BulkWay> trial = ToTry(of, open, now);
  const BulkWay way = trial ? *trial : Fastest(of, open);
  of.Of(way).tried = now;
  if (!trial) of.in_use = way;
  return way;
}

// One at a time: a trial that is under way has its time noted, and is not begun again before kStale.
std::optional<BulkWay> PathChoice::ToTry(Peer& peer, const std::vector<BulkWay>& open, Nanos now) {
  std::optional<double> best;
  for (const BulkWay way : open) best = std::max(best, peer.Of(way).speed);
  for (const BulkWay way : open) {
    const Measured& known = peer.Of(way);
    const bool old = known.tried == Nanos(0) || now - known.tried >= kStale;
    if (!known.speed && old) return way;
    if (old && way != peer.in_use && *known.speed >= kHopeless * *best) return way;
  }
  return std::nullopt;
}

BulkWay PathChoice::Fastest(Peer& peer, const std::vector<BulkWay>& open) {
  const auto speed = [&](BulkWay way) { return peer.Of(way).speed.value_or(0); };
  const BulkWay best =
      *std::max_element(open.begin(), open.end(), [&](BulkWay a, BulkWay b) { return speed(a) < speed(b); });
  const bool can_stay = peer.in_use && std::find(open.begin(), open.end(), *peer.in_use) != open.end();
  return can_stay && speed(best) < kMargin * speed(*peer.in_use) ? *peer.in_use : best;
}

void PathChoice::Moved(const std::string& peer, BulkWay way, uint64_t bytes, Nanos took, Nanos now) {
  const auto found = peers_.find(peer);
  if (found == peers_.end() || bytes < kTelling || took <= Nanos(0)) return;
  Measured& known = found->second.Of(way);
  const double speed = static_cast<double>(bytes) / std::chrono::duration<double>(took).count();
  const bool counts = known.speed && now - known.measured < kStale;
  known.speed = counts ? *known.speed + kWeight * (speed - *known.speed) : speed;
  known.measured = now;
}

void PathChoice::Failed(const std::string& peer, BulkWay way) {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return;
  found->second.Of(way) = {};
  if (found->second.in_use == way) found->second.in_use.reset();
}

void PathChoice::ForgetOthers(const std::function<bool(const std::string& name)>& is_peer) {
  std::erase_if(peers_, [&](const auto& entry) { return !is_peer(entry.first); });
}

std::vector<PathChoice::Speed> PathChoice::Speeds() const {
  std::vector<Speed> speeds;
  for (const auto& [name, peer] : peers_) {
    for (size_t i = 0; i < kBulkWays; ++i) {
      const auto way = static_cast<BulkWay>(i);
      if (peer.ways[i].speed) speeds.push_back({name, way, *peer.ways[i].speed, peer.in_use == way});
    }
  }
  return speeds;
}

}  // namespace ckptd::transport
