// Who brings which chunks of one image that several sources have, as decisions. No I/O, no clock: `now` is given.
//
// Whoever is free gets the next chunks that nobody has been given: half of its even share of them, so that the ranges
// become shorter towards the end and all sources end at about the same time. Where nothing is left to give, a free
// source takes the end of what another one has yet to bring: as much as makes both end together by the pace that each
// has shown. A source that stands still seems slower with every moment, until all that it has is taken. It may bring
// chunks meanwhile: whichever comes first counts.
//
// A source that has shown nothing yet is tried where another one has more than a second to go, as if it were as fast;
// else it is taken for a slow one.
//
// A few chunks are no range, because each costs a question and a connection; only a source that is much slower than the
// free one is relieved of so little. The number of ranges is bounded, as the sources remember each for a while; not for
// a source whose ranges are bounded in length, which remembers none.
//
// One thread.
#ifndef CKPTD_DAEMON_PROTECT_SHARE_OUT_H_
#define CKPTD_DAEMON_PROTECT_SHARE_OUT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "daemon/base/clock.h"

namespace ckptd::protect {

class ShareOut {
 public:
  static constexpr size_t kFewest = 4;       // chunks of a range, where there are as many
  static constexpr size_t kMostTaken = 256;  // ranges that are taken from others, where `most` is no bound

  struct Range {
    size_t first = 0;
    size_t count = 0;
    bool operator==(const Range&) const = default;
  };

  // No source takes part yet.
  ShareOut(size_t chunks, size_t sources);

  // For a source that has nothing to bring, and takes part from now on: what it is to bring next. Nothing: it may be
  // asked again later. `most` chunks, where that is a bound.
  [[nodiscard]] std::optional<Range> Next(size_t source, Nanos now, size_t most = SIZE_MAX);
  // The same for one that is alone: all that nobody has been given, in one run. Whoever joins takes of it.
  [[nodiscard]] std::optional<Range> Rest(size_t source, Nanos now);
  // It has not begun, and that is no fault of the source.
  void Waits(size_t source, Nanos now) { sources_[source].began = sources_[source].last = now; }
  // The source has brought a chunk of its range, or one that was of it. False: what is behind it is for others.
  [[nodiscard]] bool Came(size_t source, size_t chunk, Nanos now);
  // It brings no more of its range: what did not come is for whoever is free. True when all that was left to it came.
  bool Ended(size_t source, Nanos now);
  // The same, and it does not take part any more.
  void Lose(size_t source, Nanos now);

  [[nodiscard]] bool Misses(size_t chunk) const { return state_[chunk] != kThere; }
  [[nodiscard]] size_t missing() const { return missing_; }
  // Of its range.
  [[nodiscard]] size_t left(size_t source) const { return sources_[source].left; }
  // Chunks that counted.
  [[nodiscard]] size_t brought(size_t source) const { return sources_[source].brought; }

 private:
  static constexpr uint32_t kThere = UINT32_MAX;
  static constexpr uint32_t kFree = UINT32_MAX - 1;  // else whose it is

  struct Source {
    bool takes_part = false;
    bool busy = false;
    bool was_taken_from = false;  // of this range
    Range range;
    size_t left = 0;  // of it
    size_t brought = 0;
    Nanos began{0};  // this range
    Nanos last{0};   // a chunk came
    Nanos spent{0};  // in ranges before, up to their last chunks
  };

  [[nodiscard]] Range FirstFree() const;
  [[nodiscard]] size_t TakingPart() const;
  [[nodiscard]] std::optional<Range> TakeFromAnother(size_t source, Nanos now, size_t bound);
  [[nodiscard]] Range Tail(size_t victim, size_t most) const;
  [[nodiscard]] static Nanos ShownPace(const Source& source);
  [[nodiscard]] static Nanos OwnPace(const Source& source, const Source& victim);
  [[nodiscard]] static Nanos PaceOf(const Source& source, Nanos now);
  Range Give(size_t source, Range range, Nanos now);

  std::vector<uint32_t> state_;  // by chunk
  std::vector<Source> sources_;
  size_t missing_;
  size_t free_;
  size_t taken_ = 0;
};

}  // namespace ckptd::protect

#endif  // CKPTD_DAEMON_PROTECT_SHARE_OUT_H_
