#include "client/core/threads/cores.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace ckptd {
namespace {

// Of a file of the kernel's, which has a page or two. One that goes on beyond 64 KiB is cut there.
std::string Content(const std::string& file) {
  constexpr size_t kMost = 64 << 10;
  char part[4096];
  std::string text;
  const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return text;
  for (ssize_t got; text.size() < kMost && (got = read(fd, part, sizeof part)) > 0;)
    text.append(part, static_cast<size_t>(got));
  close(fd);
  return text;
}

// What "max", -1 and an absent file say is none: 0.
uint32_t Cores(const std::string& quota, const std::string& period) {
  const long long granted = strtoll(quota.c_str(), nullptr, 10);
  const long long each = strtoll(period.c_str(), nullptr, 10);
  if (granted <= 0 || each <= 0) return 0;
  return static_cast<uint32_t>(std::min<long long>((granted - 1) / each + 1, UINT32_MAX));
}

uint32_t CoresOfGroup(const std::string& folder, bool first_version) {
  if (first_version) return Cores(Content(folder + "/cpu.cfs_quota_us"), Content(folder + "/cpu.cfs_period_us"));
  const std::string line = Content(folder + "/cpu.max");
  const size_t space = line.find(' ');
  return space == line.npos ? 0 : Cores(line.substr(0, space), line.substr(space));
}

uint32_t Less(uint32_t limit, uint32_t other) {
  if (limit == 0 || other == 0) return std::max(limit, other);
  return std::min(limit, other);
}

// The least that a group and those above it grant.
uint32_t CoresOfPath(const std::string& mount, std::string path, bool first_version) {
  uint32_t cores = 0;
  while (path.size() > 1) {
    cores = Less(cores, CoresOfGroup(mount + path, first_version));
    path.resize(path.rfind('/'));
  }
  return Less(cores, CoresOfGroup(mount, first_version));
}

}  // namespace

// A line is "NUMBER:CONTROLLER,CONTROLLER:/PATH", of version 2 "0::/PATH".
uint32_t QuotaCores(const std::string& groups, const std::string& mounts) {
  uint32_t cores = 0;
  for (size_t begin = 0, end; (end = groups.find('\n', begin)) != groups.npos; begin = end + 1) {
    const size_t names = groups.find(':', begin) + 1;
    const size_t path = groups.find(":/", begin) + 1;
    if (names == 0 || path == 0 || path > end) continue;
    const std::string controllers = "," + groups.substr(names, path - 1 - names) + ",";
    const bool first_version = controllers.find(",cpu,") != controllers.npos;
    if (!first_version && controllers != ",,") continue;
    cores = Less(cores,
                 CoresOfPath(mounts + (first_version ? "/cpu" : ""), groups.substr(path, end - path), first_version));
  }
  return cores;
}

uint32_t UsableCores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  const auto cores = static_cast<uint32_t>(std::max(1, CPU_COUNT(&set)));
  const uint32_t quota = QuotaCores(Content("/proc/self/cgroup"), "/sys/fs/cgroup");
  return quota == 0 ? cores : std::min(cores, quota);
}

}  // namespace ckptd
