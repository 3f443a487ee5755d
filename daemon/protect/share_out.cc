#include "daemon/protect/share_out.h"

#include <algorithm>

namespace ckptd::protect {
namespace {

constexpr int64_t kMuchSlower = 4;                            // times
constexpr Nanos kUnknownPace = std::chrono::seconds(1);       // at least, of a source that has brought nothing yet
constexpr Nanos kWorthATry = std::chrono::seconds(1);         // what another one has yet to bring
constexpr Nanos kNoSilence = std::chrono::milliseconds(250);  // a question and a connection take as long

}  // namespace

ShareOut::ShareOut(size_t chunks, size_t sources)
    : state_(chunks, kFree), sources_(sources), missing_(chunks), free_(chunks) {}

std::optional<ShareOut::Range> ShareOut::Next(size_t source, Nanos now, size_t most) {
  sources_[source].takes_part = true;
  if (free_ == 0) return TakeFromAnother(source, now, most);
  Range range = FirstFree();
  const size_t fair = std::max(kFewest, free_ / (2 * TakingPart()));
  if (range.count >= fair + kFewest) range.count = fair;
  range.count = std::min(range.count, most);
  return Give(source, range, now);
}

std::optional<ShareOut::Range> ShareOut::Rest(size_t source, Nanos now) {
  if (free_ == 0) return Next(source, now);
  sources_[source].takes_part = true;
  return Give(source, FirstFree(), now);
}

// The first run of chunks that nobody has been given.
ShareOut::Range ShareOut::FirstFree() const {
  const auto first = std::find(state_.begin(), state_.end(), kFree);
  const auto end = std::find_if(first, state_.end(), [](uint32_t state) { return state != kFree; });
  return {static_cast<size_t>(first - state_.begin()), static_cast<size_t>(end - first)};
}

size_t ShareOut::TakingPart() const {
  const auto takes_part = [](const Source& source) { return source.takes_part; };
  return static_cast<size_t>(std::count_if(sources_.begin(), sources_.end(), takes_part));
}

ShareOut::Range ShareOut::Give(size_t source, Range range, Nanos now) {
  for (size_t i = range.first; i < range.first + range.count; ++i) {
    if (state_[i] == kFree) --free_;
    state_[i] = static_cast<uint32_t>(source);
  }
  Source& to = sources_[source];
  to.busy = true;
  to.was_taken_from = false;
  to.range = range;
  to.left = range.count;
  to.began = to.last = now;
  return range;
}

// Of whoever has most to bring, by its pace.
std::optional<ShareOut::Range> ShareOut::TakeFromAnother(size_t source, Nanos now, size_t bound) {
  size_t victim = source;
  int64_t longest = 0;
  for (size_t i = 0; i < sources_.size(); ++i) {
    const int64_t takes = static_cast<int64_t>(sources_[i].left) * PaceOf(sources_[i], now).count();
    if (i == source || takes <= longest) continue;
    victim = i;
    longest = takes;
  }
  const bool counts = bound == SIZE_MAX;
  if (victim == source || (counts && taken_ >= kMostTaken)) return std::nullopt;
  Source& from = sources_[victim];
  const int64_t slow = PaceOf(from, now).count();
  const int64_t own = OwnPace(sources_[source], from).count();
  const auto kept = static_cast<double>(from.left) * static_cast<double>(own) / static_cast<double>(own + slow);
  const size_t most = from.left - static_cast<size_t>(kept);
  const bool much_slower = slow / kMuchSlower >= own;
  if (most < kFewest && !much_slower) return std::nullopt;
  const Range tail = Tail(victim, std::min(most, bound));
  from.left -= tail.count;
  from.was_taken_from = true;
  if (counts) ++taken_;
  return Give(source, tail, now);
}

// Of one that is free. One that has brought nothing yet is taken for no faster than the other.
Nanos ShareOut::OwnPace(const Source& source, const Source& victim) {
  const Nanos shown = ShownPace(victim);
  if (source.brought != 0) return ShownPace(source);
  const bool is_tried = victim.brought != 0 && shown * static_cast<int64_t>(victim.left) > kWorthATry;
  return is_tried ? shown : std::max(shown, kUnknownPace);
}

Nanos ShareOut::ShownPace(const Source& source) {
  const Nanos busy = source.busy ? source.last - source.began : Nanos(0);
  const Nanos shown = source.brought == 0 ? Nanos(0) : (source.spent + busy) / static_cast<int64_t>(source.brought);
  return std::max(shown, Nanos(1));
}

// The last of what it has yet to bring, as long as that is one run.
ShareOut::Range ShareOut::Tail(size_t victim, size_t most) const {
  const Range& range = sources_[victim].range;
  size_t end = range.first + range.count;
  while (end > range.first && state_[end - 1] != victim) --end;
  size_t first = end;
  while (first > range.first && end - first < most && state_[first - 1] == victim) --first;
  return {first, end - first};
}

// Time for a chunk; for one that is busy at least as long as it has been silent.
Nanos ShareOut::PaceOf(const Source& source, Nanos now) {
  const Nanos silent = source.busy ? now - source.last : Nanos(0);
  return silent > kNoSilence ? std::max(ShownPace(source), silent) : ShownPace(source);
}

bool ShareOut::Came(size_t source, size_t chunk, Nanos now) {
  Source& from = sources_[source];
  const uint32_t whose = state_[chunk];
  if (whose != kThere) {
    if (whose == kFree) --free_;
    if (whose != kFree) --sources_[whose].left;
    state_[chunk] = kThere;
    --missing_;
    ++from.brought;
  }
  from.last = now;
  return from.left != 0 || !from.was_taken_from;
}

bool ShareOut::Ended(size_t source, Nanos now) {
  Source& from = sources_[source];
  const bool all = from.left == 0;
  if (from.busy) from.spent += (all ? now : from.last) - from.began;
  for (size_t i = from.range.first; i < from.range.first + from.range.count; ++i) {
    if (state_[i] != source) continue;
    state_[i] = kFree;
    ++free_;
  }
  from.busy = false;
  from.left = 0;
  from.range = {};
  return all;
}

void ShareOut::Lose(size_t source, Nanos now) {
  (void)Ended(source, now);
  sources_[source].takes_part = false;
}

}  // namespace ckptd::protect
