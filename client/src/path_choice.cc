#include "client/src/path_choice.h"

#include <algorithm>

namespace ckptd {

int64_t PathChoice::Window::Median() const {
  if (count == 0) return 0;
  std::array<int64_t, kRoom> sorted = values;
  auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.begin() + static_cast<std::ptrdiff_t>(size()));
  return *middle;
}

void PathChoice::Idle(uint64_t ns) { idle_.Add(static_cast<int64_t>(ns)); }

// Without enough steps to compare with, its loss means nothing.
void PathChoice::Saved(Path path, uint64_t steps, uint64_t ns) {
  saves_ += 1;
  if (idle_.size() < kSamples) return;
  int64_t lost = static_cast<int64_t>(ns) - static_cast<int64_t>(steps) * idle_.Median();
  (path == Path::kPull ? pull_ : push_).Add(lost);
  Decide();
}

void PathChoice::Decide() {
  if (samples() < kSamples || verdict_ == Verdict::kPush) return;
  double gain = static_cast<double>(push_.Median() - pull_.Median()) / static_cast<double>(idle_.Median());
  double needed = verdict_ == Verdict::kPull ? kGain / 2 : kGain;
  verdict_ = gain >= needed ? Verdict::kPull : Verdict::kPush;
}

PathChoice::Path PathChoice::Next() const {
  if (verdict_ == Verdict::kPush) return Path::kPush;
  if (verdict_ == Verdict::kPull) return saves_ % kProbe == 0 ? Path::kPush : Path::kPull;
  return saves_ % 2 == 0 ? Path::kPush : Path::kPull;
}

int64_t PathChoice::loss_ppm(Path path) const {
  const int64_t step = idle_.Median();
  return step == 0 ? 0 : losses(path).Median() * 1'000'000 / step;
}

uint32_t PathChoice::samples() const { return static_cast<uint32_t>(std::min(push_.count, pull_.count)); }

}  // namespace ckptd
