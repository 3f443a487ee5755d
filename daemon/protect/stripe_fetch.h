// One try to rebuild a stretch of what is missing of one stripe of a lost image: as much as there is memory for (all
// sources do not begin at once, so those that do may bring all of it before the others bring a byte). First all k
// sources are asked what they have: the images are of unequal length, and which bytes a chunk is made of is known only
// then. Then all of them bring their bytes at once (stripe_rebuild.h). A source whose block is shorter brings less, or
// nothing and is then not read.
//
// With the first source that fails the try ends: what still moves is cancelled, and `ended` comes when no thread writes
// into the slot any more. What is rebuilt until then stays so; whoever began the try begins another one, of the chunks
// that are still missing, with the sources that are left.
//
// The record of the lost image is what the first parity tells of it. All others have to tell the same.
//
// On the loop's thread. Destroying it ends what is under way.
#ifndef CKPTD_DAEMON_PROTECT_STRIPE_FETCH_H_
#define CKPTD_DAEMON_PROTECT_STRIPE_FETCH_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/units.h"
#include "daemon/protect/copy_fetch.h"
#include "daemon/protect/held_parity.h"
#include "daemon/protect/parity_plan.h"
#include "daemon/protect/piece_source.h"
#include "daemon/protect/stripe_rebuild.h"

namespace ckptd::protect {

// What a rebuild reaches. All outlive it; `work` reads what is on this node already.
struct RebuildEnds {
  Loop& loop;
  const Clock& clock;
  Executor& work;
  CopyFetch::Whose whose;
  // Null while this node speaks to no other.
  PieceSource::Calls calls;
  // An image in this node's memory, wherever it lies. NOT_FOUND.
  std::function<absl::StatusOr<HeldSnapshot>(Rank rank, const SnapshotId& id)> open;
  // Complete parity of this snapshot in this node's memory. NOT_FOUND.
  std::function<absl::StatusOr<HeldParity>(const ParityPlace& place, const SnapshotId& id)> parity;
  PieceSource::Attempt attempt;
  // The image that is rebuilt, as it is on storage, whether or not it is; may be null.
  std::function<std::unique_ptr<StoredCopy>(const SnapshotId& id)> stored = nullptr;
  uint64_t memory = 512 * kMiB;  // bytes for what the sources of a stretch bring; one chunk of each, if that is more

  [[nodiscard]] std::string Name(const SnapshotId& id) const;  // "job gpt rank 3 step 10"
  // What the source is to be asked for, but for the range.
  [[nodiscard]] v1::DescribeRequest RequestFor(const ParityPlan::Source& source, const SnapshotId& id) const;
};

// As another agent would tell of it.
[[nodiscard]] v1::DescribeResponse DescriptionOf(const HeldSnapshot& held);
// NOT_FOUND when it was made of no block of the rank.
[[nodiscard]] absl::StatusOr<v1::DescribeResponse> DescriptionOf(const HeldParity& held, Rank rank);
// Of this snapshot, with a checksum for each chunk. CORRUPT.
[[nodiscard]] absl::Status CheckTold(const v1::DescribeResponse& told, const SnapshotId& id);

class StripeFetch {
 public:
  // Lengths of images, by rank and who told of them. Learned once.
  using Lengths = std::map<std::pair<Rank, std::string>, uint64_t>;

  struct Order {
    SnapshotId id;
    CopyFetch::Into into;
    erasure::Extent block;                         // of the lost image; not empty
    std::vector<bool> rebuilt;                     // its chunks; one is missing
    std::shared_ptr<const v1::CopyRecord> record;  // null: not told yet
    bool spare = false;                            // all sources: what is rebuilt is elsewhere, too
  };
  struct Outcome {
    std::vector<bool> rebuilt;
    std::shared_ptr<const v1::CopyRecord> record;
    std::vector<std::pair<ParityPlan::Source, absl::Status>> lost;
    absl::Status failed;  // for another reason than its sources: no further try helps
  };
  using Ended = std::function<void(Outcome)>;

  // `ended` comes in a turn of its own. `ends` and `lengths` outlive it.
  StripeFetch(const RebuildEnds& ends, Lengths& lengths, ParityPlan::Stripe stripe, Order order, Ended ended);
  ~StripeFetch();
  void Start();
  // Order::spare, from now on.
  void CanBeSpared();

 private:
  struct Piece;

  void Ask(size_t i);
  void AskSelf(size_t i);
  void Answered(size_t i, absl::StatusOr<v1::DescribeResponse> answer);
  [[nodiscard]] absl::Status TakeImage(Piece& piece, const v1::DescribeResponse& told) const;
  [[nodiscard]] absl::Status TakeParity(Piece& piece, const v1::DescribeResponse& told);
  void Told();
  [[nodiscard]] erasure::Extent StretchOf(const Piece& piece, uint64_t image_bytes) const;
  void Begin();
  [[nodiscard]] absl::Status Bring(size_t i);
  void BringFromSelf(size_t i);
  void BroughtBy(size_t i, const absl::Status& status);
  void Lose(size_t i, const absl::Status& why);
  void GiveUp();
  void MaybeFinish();
  [[nodiscard]] Outcome Result() const;

  const RebuildEnds& ends_;
  Lengths& lengths_;
  ParityPlan::Stripe stripe_;
  Order order_;
  Ended ended_;
  size_t first_ = 0;  // chunks of the block: all that are missing lie in between
  size_t count_ = 0;
  std::vector<std::unique_ptr<Piece>> pieces_;
  std::shared_ptr<StripeRebuild> rebuild_;  // since all have told
  size_t untold_ = 0;
  size_t moving_ = 0;
  bool over_ = false;
  bool finished_ = false;
  std::vector<std::pair<ParityPlan::Source, absl::Status>> lost_;
  absl::Status failed_;
  CallbackScope scope_;
};

}  // namespace ckptd::protect

#endif  // CKPTD_DAEMON_PROTECT_STRIPE_FETCH_H_
