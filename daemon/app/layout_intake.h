// From the headers a trainer sends (or a checkpoint holds) to a layout in the region: parse on a worker, find the
// layout or make room, populate in the background, tell when it is there.
//
// When memory does not hold the new layout beside the old ones, the snapshot machine is asked to give up what it can
// (snapshot::RoomNeeded), and the order waits: for a writer's acknowledgement, a flush, a step that is not captured
// everywhere yet. What can never fit is refused with the numbers; the trainer asks again later.
#ifndef CKPTD_DAEMON_APP_LAYOUT_INTAKE_H_
#define CKPTD_DAEMON_APP_LAYOUT_INTAKE_H_

#include <functional>
#include <list>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/app/services.h"
#include "daemon/base/callback_scope.h"
#include "daemon/region/rank_region.h"

namespace ckptd {

// What the images' headers say.
struct HeaderFacts {
  std::vector<ImageExtent> images;  // offsets filled in
  uint32_t header_crc = 0;
  uint64_t tensors = 0;
};

// Any thread. INVALID_ARGUMENT or CORRUPT with the place in the header.
[[nodiscard]] absl::StatusOr<HeaderFacts> ReadHeaderFacts(const std::string& headers);

// Control thread.
class LayoutIntake {
 public:
  struct Order {
    uint32_t world = 0;
    uint64_t chunk_bytes = 0;  // 0 = choose
    region::Preparation preparation = region::Preparation::kPopulated;
    std::function<absl::StatusOr<std::string>()> headers;                      // runs on a worker; or null, and
    HeaderFacts facts;                                                         // what they say
    std::function<void(uint64_t prepared, uint64_t total)> progress;           // may be null
    std::function<bool()> wanted;                                              // may be null; false: forget it
    std::function<void(absl::StatusOr<region::LayoutSet*>, bool fresh)> done;  // once; fresh: made now
  };

  // `need_room(true)` asks for slots to be given up; RoomMade() is called for each that was.
  // `elsewhere`: what the other ranks of the job can give back.
  LayoutIntake(Services& services, region::RankRegion& region, std::string job, uint32_t uid,
               std::function<void(bool)> need_room, std::function<region::Shrinkable()> elsewhere);
  ~LayoutIntake();

  void Take(Order order);
  void RoomMade();
  [[nodiscard]] size_t orders() const { return orders_; }  // taken and not done

  [[nodiscard]] uint64_t prepared_bytes() const;
  [[nodiscard]] uint64_t total_bytes() const;
  [[nodiscard]] bool waits_for_room() const { return !waiting_.empty(); }
  [[nodiscard]] bool busy() const { return !builds_.empty() || !waiting_.empty(); }

 private:
  struct Build;
  struct Waiting {
    Order order;
    region::LayoutSpec spec;
  };

  void Continue(Order order, absl::StatusOr<HeaderFacts> facts);
  void Place(Order order, const region::LayoutSpec& spec);
  absl::StatusOr<region::LayoutFit> FindRoom(const region::LayoutSpec& spec);
  uint64_t ShortOf(const region::LayoutPlan& plan) const;
  void Shrink();
  absl::Status ForgetOrphans(uint64_t short_of);
  void Retry();
  void StartTick();
  void Start(Order order, const region::LayoutSpec& spec);
  void Finish(Build* build, const absl::Status& status);
  void Tick();

  Services& services_;
  region::RankRegion& region_;
  const std::string job_;
  const uint32_t uid_;
  const std::function<void(bool)> need_room_;
  const std::function<region::Shrinkable()> elsewhere_;
  std::list<std::unique_ptr<Build>> builds_;
  std::list<Waiting> waiting_;  // for room
  size_t orders_ = 0;
  bool shrinking_ = false;  // need_room_(true) was said last
  bool retry_posted_ = false;
  Loop::TimerId tick_ = 0;
  CallbackScope scope_;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_APP_LAYOUT_INTAKE_H_
