// What can be rebuilt: the parity that agents REPORTed, and the images of its groups that are still there. Which image
// gave a block to which stripe, and who keeps what, is daemon/erasure/rotation.h.
//
// What a parity was made of, it says itself; which groups there are now does not matter here. Pure. One thread.
#ifndef CKPTD_DAEMON_JOB_PARITY_STOCK_H_
#define CKPTD_DAEMON_JOB_PARITY_STOCK_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/base/ids.h"
#include "daemon/job/machine.h"
#include "daemon/job/who_has.h"
#include "daemon/protect/groups.h"

namespace ckptd::job {

// Of one snapshot.
class ParityStock {
 public:
  // `having`: the agents that have each rank's image, in a slot or as a copy; it outlives this. Parity that breaks a
  // bound is left out.
  ParityStock(const std::vector<Said<v1::HeldParity>>& parity, const std::map<Rank, std::set<std::string>>& having,
              const Rules& rules);

  // Every parity of the group is where it should be, and was made of exactly these ranks.
  [[nodiscard]] bool Whole(const protect::RankGroup& group, uint32_t parity) const;

  // What the rank's image can be rebuilt from; nothing when too much of each of its groups is lost.
  [[nodiscard]] std::optional<v1::ParitySources> SourcesOf(Rank rank) const;

  // Ranks of groups of which there is some parity, that nobody has and that can be rebuilt.
  [[nodiscard]] std::vector<Rank> Rebuildable() const;

 private:
  using Block = std::pair<uint32_t, uint32_t>;  // stripe, row
  struct Key {
    std::vector<Rank> ranks;
    uint32_t parity = 0;
    auto operator<=>(const Key&) const = default;
  };
  using Blocks = std::map<Block, std::set<std::string>>;

  [[nodiscard]] Blocks BlocksOf(const protect::RankGroup& group, uint32_t parity) const;
  [[nodiscard]] bool Has(Rank rank) const;
  [[nodiscard]] bool Suffices(const Key& key, const Blocks& blocks, uint32_t place) const;
  [[nodiscard]] v1::ParitySources Describe(const Key& key, const Blocks& blocks) const;

  const std::map<Rank, std::set<std::string>>& having_;
  const Rules rules_;
  std::map<Key, Blocks> groups_;
};

}  // namespace ckptd::job

#endif  // CKPTD_DAEMON_JOB_PARITY_STOCK_H_
