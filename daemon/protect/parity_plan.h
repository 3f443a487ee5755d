// What the image of a lost rank is rebuilt from, stripe by stripe: which members of its group are left, and which of
// them are read. The coordinator says who is there (v1::ParitySources); what turns out not to be is lost from then on:
//
//   silent     whoever does not answer is not asked for anything any more
//   not there  an image that an agent does not have is not asked of it again
//   spoiled    bytes that are not what their record says are lost for their stripe: others of the same image may be
//   good
//
// A member whose agent began anew is read again, twice at most. One thread.
#ifndef CKPTD_DAEMON_PROTECT_PARITY_PLAN_H_
#define CKPTD_DAEMON_PROTECT_PARITY_PLAN_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/erasure/decoder.h"
#include "daemon/protect/parity_piece.h"
#include "proto/ckptd/v1/job.pb.h"

namespace ckptd::protect {

class ParityPlan {
 public:
  struct Source {
    uint32_t member = 0;  // as the stripe's code counts: parity from k on
    std::string agent;
    Rank rank = 0;  // whose image; of parity: the one that is rebuilt
    std::optional<ParityPlace> parity;
    bool spare = false;  // the stripe can be rebuilt without it
  };
  struct Stripe {
    ParityPlace place;  // row 0
    erasure::Decoder decoder;
    std::vector<Source> sources;  // in the order of decoder.sources()
  };

  // `agent`: this one; what it has itself is read first. INVALID_ARGUMENT when that is no group, or not the rank's.
  [[nodiscard]] static absl::StatusOr<ParityPlan> Make(const v1::ParitySources& sources, Rank rank, std::string agent);

  // That the rank gives its blocks to, in the order of the blocks.
  [[nodiscard]] std::vector<uint32_t> Stripes() const;
  [[nodiscard]] ParityPlace PlaceIn(uint32_t stripe, uint32_t row = 0) const;
  // All parity that was made of the rank's image, also what is lost.
  [[nodiscard]] std::vector<Source> Holders() const;

  // The k members to read. When too few are left: an error of the kind of the last loss that names group and losses.
  [[nodiscard]] absl::StatusOr<Stripe> Choose(uint32_t stripe) const;
  void Lose(uint32_t stripe, const Source& source, const absl::Status& why);

 private:
  ParityPlan(std::vector<Rank> ranks, Rank rank, std::string agent, erasure::Code code)
      : ranks_(std::move(ranks)), rank_(rank), agent_(std::move(agent)), code_(std::move(code)) {}

  using Spoiled = std::tuple<uint32_t, uint32_t, std::string>;  // stripe, member, agent

  [[nodiscard]] absl::Status Add(const v1::ParitySources& sources);
  // The agents that member `member` of the stripe's code can be read from, the best one first.
  [[nodiscard]] std::vector<std::string> AgentsOf(uint32_t stripe, uint32_t member) const;
  [[nodiscard]] absl::Status TooFew(uint32_t stripe, const std::vector<uint32_t>& lost) const;

  std::vector<Rank> ranks_;
  Rank rank_;
  std::string agent_;
  erasure::Code code_;
  std::map<Rank, std::vector<std::string>> images_;
  std::map<std::pair<uint32_t, uint32_t>, std::string> parity_;  // by stripe and row
  std::set<std::string> silent_;
  std::set<std::pair<Rank, std::string>> not_there_;
  std::set<Spoiled> spoiled_;
  std::map<std::string, int> anew_;
  absl::Status last_;
};

}  // namespace ckptd::protect

#endif  // CKPTD_DAEMON_PROTECT_PARITY_PLAN_H_
