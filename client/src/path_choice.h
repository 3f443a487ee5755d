// Push or pull, by what each costs training. Pure: it is told how long steps took and decides.
//
// A save's loss is what its steps took longer than a step without a save takes (the median of the last of those). While
// fewer than kSamples saves of each path are known, saves alternate. Then pull is chosen where its median loss is lower
// by at least kGain of a step; chosen, it keeps being compared (every kProbe-th save is pushed), and is left where the
// difference falls below half of that. Where push wins there is nothing left to compare: the copier is let go of, for
// its context takes GPU memory.
#ifndef CKPTD_CLIENT_SRC_PATH_CHOICE_H_
#define CKPTD_CLIENT_SRC_PATH_CHOICE_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace ckptd {

class PathChoice {
 public:
  static constexpr size_t kSamples = 20;
  static constexpr double kGain = 0.02;
  static constexpr uint64_t kProbe = 10;

  enum class Path : uint8_t { kPush, kPull };
  enum class Verdict : uint8_t { kOpen, kPush, kPull };

  // A training step of `ns` during which nothing was captured.
  void Idle(uint64_t ns);
  // A save ended: how many steps it ran beside, and what they took together.
  void Saved(Path path, uint64_t steps, uint64_t ns);

  [[nodiscard]] Path Next() const;  // of the next save
  [[nodiscard]] Verdict verdict() const { return verdict_; }

  // Median loss in millionths of a step without a save; 0 where nothing is known.
  [[nodiscard]] int64_t loss_ppm(Path path) const;
  [[nodiscard]] uint32_t samples() const;  // of the path that has fewer

 private:
  // The newest values, in no order.
  struct Window {
    static constexpr size_t kRoom = 2 * kSamples;
    std::array<int64_t, kRoom> values = {};
    uint64_t count = 0;  // ever

    void Add(int64_t value) { values[count++ % kRoom] = value; }
    [[nodiscard]] size_t size() const { return count < kRoom ? count : kRoom; }
    [[nodiscard]] int64_t Median() const;
  };

  [[nodiscard]] const Window& losses(Path path) const { return path == Path::kPull ? pull_ : push_; }
  void Decide();

  Window idle_;  // ns
  Window push_;  // ns lost by a save
  Window pull_;
  uint64_t saves_ = 0;
  Verdict verdict_ = Verdict::kOpen;
};

}  // namespace ckptd

#endif  // CKPTD_CLIENT_SRC_PATH_CHOICE_H_
