// Which generation of a node may still speak. A node that was paused or cut off comes back believing that it is what it
// was; what it says carries its generation, and everybody who has heard of a later one, or that this one ended, refuses
// it. (The fencing tokens of Chubby and ZooKeeper: numbers that only grow, checked by whoever is spoken to. No clock.)
//
// Per name three numbers: `named`, the highest generation that the source said lives; `ended`, the highest that it said
// and then said no more; `claimed`, the highest that a node claimed for itself and was believed. A claim stands unless
// it is below one of the first and the last, or not above `ended`.
//
// Sources whose generations are revisions of one store (etcd) order all of them, of whatever name. So what is known of
// names that left can be bounded: the name whose generation is lowest is forgotten, and that generation becomes the
// floor for names that are not known.
#ifndef CKPTD_DAEMON_MEMBERSHIP_FENCE_H_
#define CKPTD_DAEMON_MEMBERSHIP_FENCE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "daemon/membership/member.h"

namespace ckptd::membership {

inline constexpr size_t kMaxDeparted = 4 * kMaxMembers;

// Pure; one thread.
class Fence {
 public:
  explicit Fence(size_t max_departed = kMaxDeparted) : max_departed_(max_departed) {}

  // The source says that this generation lives. FENCED when a later one was said, or this one ended: then nothing
  // changes. 0 (a source that knows none) is always believed.
  [[nodiscard]] absl::Status Named(const std::string& name, uint64_t generation);
  // The source names it no more: its generation is over.
  void Left(const std::string& name);
  // A node says that it is this generation of `name`. FENCED when it is out of date.
  [[nodiscard]] absl::Status Claimed(const std::string& name, uint64_t generation);
  // What Claimed would say. Nothing changes.
  [[nodiscard]] absl::Status WouldClaim(const std::string& name, uint64_t generation) const;

 private:
  struct Record {
    uint64_t named = 0;
    uint64_t ended = 0;
    uint64_t claimed = 0;
    bool present = false;
  };

  [[nodiscard]] absl::Status CheckAgainst(const std::string& name, uint64_t generation) const;
  void Forget();

  const size_t max_departed_;
  uint64_t floor_ = 0;
  std::map<std::string, Record> records_;
  std::set<std::pair<uint64_t, std::string>> departed_;  // {ended, name} of those that are not present
};

}  // namespace ckptd::membership

#endif  // CKPTD_DAEMON_MEMBERSHIP_FENCE_H_
