// The bytes of a slot go bad at random: libckpt, which copies a snapshot out of it, notices before restore() is done.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "client/core/copy/crc32c.h"
#include "client/core/wire/fds.h"
#include "client/src/slot_reader.h"
#include "tests/crash/corrupt.h"

namespace ckptd::harness {
namespace {

constexpr uint64_t kChunk = 64 << 10;

std::string Bytes(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string bytes(3 * kChunk, 0);
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

std::vector<uint32_t> CrcsOf(const std::string& bytes) {
  std::vector<uint32_t> crcs;
  for (size_t at = 0; at < bytes.size(); at += kChunk) crcs.push_back(Crc32c(0, bytes.data() + at, kChunk));
  return crcs;
}

class CorruptSlot : public ::testing::Test {
 protected:
  CorruptSlot() { Store(path_, good_); }
  ~CorruptSlot() override { std::filesystem::remove(path_); }

  [[nodiscard]] Seen Load(const std::vector<uint32_t>& crcs) const {
    const UniqueFd file(open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    SharedMapping slot;
    if (MapSlot(file.get(), good_.size(), &slot) != 0) return Seen::kNoticed;
    const SlotChunks chunks = {slot.data(), good_.size(), kChunk, crcs};
    Lanes lanes;
    std::string bytes(good_.size(), 0);
    ckpt_box box = {bytes.data(), 0, bytes.size(), 0};
    const bool ok = SlotReader(chunks, lanes, [] {}).Read(&box, 1) == 0;
    return Judge(ok, bytes == good_);
  }

  const std::string path_ = "/dev/shm/ckptd-corrupt-slot-" + std::to_string(getpid());
  const std::string good_ = Bytes(1);
};

TEST_F(CorruptSlot, IsNoticed) {
  const std::vector<uint32_t> crcs = CrcsOf(good_);
  const Tally tally = Sweep("slot", Cases() * 3 / 10, path_, Bytes(2), [&] { return Load(crcs); });
  EXPECT_EQ(tally.noticed.size(), kKinds.size() - 1) << "all kinds but a longer file";
}

// The check proves itself: without checksums the same damage comes out as bytes.
TEST_F(CorruptSlot, WithoutChecksumsItWouldNotBeNoticed) {
  Corrupter corrupter(1);
  uint64_t wrong = 0;
  for (int i = 0; i < 100; ++i) {
    const std::string bad = corrupter.Make(Kind::kBit, good_, "");
    Store(path_, bad);
    wrong += Load(CrcsOf(bad)) == Seen::kWrong ? 1 : 0;
  }
  EXPECT_EQ(wrong, 100u);
}

}  // namespace
}  // namespace ckptd::harness
