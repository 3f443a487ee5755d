#include "daemon/os/probe.h"

#include <linux/magic.h>
#include <sys/sysinfo.h>
#include <sys/vfs.h>

#include <array>
#include <cerrno>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"

namespace ckptd {
namespace {

absl::Status WriteOneBlock(Files& files, const std::string& path) {
  alignas(kDirectAlignment) static constexpr std::array<std::byte, kDirectAlignment> kBlock{};
  CKPTD_ASSIGN_OR_RETURN(auto file, files.Open(path, {.write = true, .create = true, .direct = true}));
  CKPTD_RETURN_IF_ERROR(file->PWrite(0, kBlock));
  return file->Close();
}

// The huge= option of the mount that `device` names, from /proc/self/mountinfo:
// "36 35 0:31 / /dev/shm rw,nosuid - tmpfs tmpfs rw,size=8G,huge=within_size"
std::string HugeOptionOf(const std::string& dir) {
  std::ifstream mounts("/proc/self/mountinfo");
  std::string huge = "never";
  size_t longest = 0;
  for (std::string line; std::getline(mounts, line);) {
    std::vector<std::string> fields = absl::StrSplit(line, ' ');
    if (fields.size() < 6) continue;
    const std::string& mount = fields[4];
    bool holds_dir = mount == "/" || dir == mount || absl::StartsWith(dir, mount + "/");
    if (!holds_dir || mount.size() < longest) continue;
    longest = mount.size();
    huge = "never";
    for (absl::string_view option : absl::StrSplit(fields.back(), ',')) {
      if (absl::ConsumePrefix(&option, "huge=")) huge = std::string(option);
    }
  }
  return huge;
}

}  // namespace

absl::Status ProbeDirectIo(Files& files, const std::string& path) {
  absl::Status status = WriteOneBlock(files, path);
  absl::Status removed = files.Unlink(path);
  return status.ok() ? removed : status;
}

absl::StatusOr<TmpfsFacts> ProbeTmpfs(const std::string& dir) {
  struct statfs info {};
  if (statfs(dir.c_str(), &info) != 0) return FileError(errno, "statfs", dir);
  const auto block = static_cast<uint64_t>(info.f_bsize);
  struct sysinfo node {};
  return TmpfsFacts{.is_tmpfs = info.f_type == TMPFS_MAGIC,
                    .total = info.f_blocks * block,
                    .available = info.f_bavail * block,
                    .huge = HugeOptionOf(dir),
                    .may_swap = sysinfo(&node) == 0 && node.totalswap != 0};
}

}  // namespace ckptd
