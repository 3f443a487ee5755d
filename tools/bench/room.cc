#include "tools/bench/room.h"

#include <algorithm>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "daemon/base/status_macros.h"
#include "daemon/base/units.h"
#include "daemon/os/posix_files.h"
#include "daemon/os/probe.h"

namespace ckptd::bench {
namespace {

constexpr uint64_t kLeast = kMiB;
constexpr uint64_t kContexts = kGiB;  // of the GPU: this process's and a copier's
constexpr uint64_t kReserve = kGiB;   // of memory
constexpr uint64_t kImageMore = 64 * kMiB;
constexpr uint64_t kMostBytes = UINT64_MAX >> 12;  // of one rank: sums over 64 ranks stay numbers
constexpr char kTooMuch[] = "more than any machine has: --bytes";

struct Need {
  uint64_t device;
  uint64_t region;
  uint64_t memory;
};

// State and scratch on the GPU; two images in the region; the limit's pinned blocks, together as large as the state.
Need NeedOf(const GpuRoom& room, uint64_t bytes) {
  const uint64_t device = bytes + bytes / 4 + 2 * kMiB + (room.shared ? 0 : kContexts);
  const uint64_t region = kSlots * (bytes + bytes / 64) + kImageMore;
  return {device, region, region + bytes + (room.shared ? device : 0) + kReserve};
}

std::string Lacks(const char* what, uint64_t needed, uint64_t free_bytes) {
  if (needed <= free_bytes) return "";
  return absl::StrCat("needs ", FormatBytes(needed), " of ", what, ", ", FormatBytes(free_bytes), " are free: --bytes");
}

}  // namespace

uint64_t AvailableMemory() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  uint64_t kib = 0;
  for (std::string unit; file >> name >> kib; std::getline(file, unit)) {
    if (name == "MemAvailable:") return kib * kKiB;
  }
  return 0;
}

absl::StatusOr<std::string> NoRoom(const Options& options, uint64_t bytes, uint32_t files) {
  if (bytes > kMostBytes) return kTooMuch;
  CKPTD_ASSIGN_OR_RETURN(TmpfsFacts tmpfs, ProbeTmpfs(options.region));
  CKPTD_ASSIGN_OR_RETURN(SpaceInfo disk, PosixFiles().Space(options.dir));
  const uint64_t memory = (kSlots + 1) * bytes * options.ranks + kReserve;
  std::string lacks = Lacks("memory", memory, std::min(tmpfs.available, AvailableMemory()));
  return lacks.empty() ? Lacks(options.dir.c_str(), files * bytes * options.ranks, disk.available) : lacks;
}

absl::StatusOr<GpuRoom> FindGpuRoom(const Options& options, const Gpu& gpu) {
  CKPTD_ASSIGN_OR_RETURN(TmpfsFacts tmpfs, ProbeTmpfs(options.region));
  CKPTD_ASSIGN_OR_RETURN(uint64_t device, gpu.FreeBytes());
  return GpuRoom{device, tmpfs.available, AvailableMemory(), gpu.is_host_device()};
}

std::string NoGpuRoom(const GpuRoom& room, uint64_t bytes) {
  if (bytes > kMostBytes) return kTooMuch;
  const Need need = NeedOf(room, bytes);
  for (const std::string& lacks :
       {Lacks("GPU memory", need.device, room.device), Lacks("the region's tmpfs", need.region, room.region),
        Lacks("memory", need.memory, room.memory)}) {
    if (!lacks.empty()) return lacks;
  }
  return "";
}

uint64_t FittingState(const GpuRoom& room, uint64_t wanted) {
  uint64_t bytes = wanted;
  while (bytes >= kLeast && !NoGpuRoom(room, bytes).empty()) bytes -= bytes / 16;
  return bytes >= kLeast ? bytes : 0;
}

}  // namespace ckptd::bench
