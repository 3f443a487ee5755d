#include "tools/bench/gpu_limits.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/status_macros.h"
#include "daemon/base/units.h"
#include "tools/bench/measure.h"

namespace ckptd::bench {
namespace {

constexpr uint64_t kPage = 4096;
constexpr int kDefault = 0;  // MPOL_DEFAULT
constexpr int kPreferred = 1;
constexpr int kMaskBits = 64;

// "N0=25" of a line of numa_maps.
void CountPages(const std::string& word, std::map<int, uint64_t>* pages) {
  size_t equals = word.find('=');
  int node = 0;
  uint64_t count = 0;
  if (word[0] == 'N' && equals != std::string::npos && absl::SimpleAtoi(word.substr(1, equals - 1), &node) &&
      absl::SimpleAtoi(word.substr(equals + 1), &count)) {
    (*pages)[node] += count;
  }
}

int NodeOfFilesBelow(const std::string& folder) {
  std::map<int, uint64_t> pages;
  std::ifstream lines("/proc/self/numa_maps");
  for (std::string line; std::getline(lines, line);) {
    if (!absl::StrContains(line, absl::StrCat("file=", folder, "/"))) continue;
    std::istringstream words(line);
    for (std::string word; words >> word;) CountPages(word, &pages);
  }
  auto most = std::max_element(pages.begin(), pages.end(),
                               [](const auto& left, const auto& right) { return left.second < right.second; });
  return most == pages.end() ? -1 : most->first;
}

// Where new pages of this thread come from; -1: from where it runs.
void PreferNode(int node) {
  const uint64_t mask = node < 0 ? 0 : uint64_t{1} << node;
  (void)syscall(SYS_set_mempolicy, node < 0 ? kDefault : kPreferred, node < 0 ? nullptr : &mask,
                node < 0 ? 0 : kMaskBits);
}

}  // namespace

absl::StatusOr<std::unique_ptr<PinnedBlocks>> PinnedBlocks::Make(const Gpu& gpu, const std::string& region,
                                                                 uint64_t state_bytes) {
  const uint64_t block = std::min(kLimitBlockBytes, RoundUp(state_bytes / kLimitBlocks + 1, kPage));
  std::unique_ptr<PinnedBlocks> blocks(new PinnedBlocks(gpu, block));
  blocks->node_ = NodeOfFilesBelow(region);
  PreferNode(blocks->node_);
  absl::Status allocated = blocks->Allocate();
  PreferNode(-1);
  CKPTD_RETURN_IF_ERROR(allocated);
  return blocks;
}

absl::Status PinnedBlocks::Allocate() {
  const Device& device = gpu_.device();
  CKPTD_RETURN_IF_ERROR(StatusOf(device.CreateStream(&stream_)));
  CKPTD_RETURN_IF_ERROR(StatusOf(device.Allocate(block_bytes_, &on_device_)));
  while (blocks_.size() < kLimitBlocks) {
    void* block = nullptr;
    CKPTD_RETURN_IF_ERROR(StatusOf(device.AllocatePinned(block_bytes_, &block)));
    blocks_.push_back(block);
  }
  return absl::OkStatus();
}

PinnedBlocks::~PinnedBlocks() {
  const Device& device = gpu_.device();
  for (void* block : blocks_) (void)device.FreePinned(block);
  if (on_device_ != 0) (void)device.Free(on_device_);
  if (stream_.handle != nullptr) (void)device.DestroyStream(stream_);
}

absl::StatusOr<double> PinnedBlocks::CopyOut() const { return CopyAll(true); }

absl::StatusOr<double> PinnedBlocks::CopyIn() const { return CopyAll(false); }

absl::StatusOr<double> PinnedBlocks::CopyAll(bool out) const {
  const Device& device = gpu_.device();
  TimePoint begin = Now();
  for (void* block : blocks_) {
    DeviceError error = out ? device.CopyOut(block, on_device_, block_bytes_, stream_)
                            : device.CopyIn(on_device_, block, block_bytes_, stream_);
    CKPTD_RETURN_IF_ERROR(StatusOf(error));
  }
  CKPTD_RETURN_IF_ERROR(StatusOf(device.Synchronize(stream_)));
  return SecondsSince(begin);
}

std::string PinnedBlocks::Describe() const {
  const std::string node = node_ < 0 ? "" : absl::StrCat(", node ", node_, " as the region");
  return absl::StrCat(kLimitBlocks, " x ", FormatBytes(block_bytes_), node);
}

}  // namespace ckptd::bench
