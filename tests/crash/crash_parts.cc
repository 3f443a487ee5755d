#include "tests/crash/crash_parts.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <vector>

#include "absl/strings/str_cat.h"

namespace ckptd::crash {
namespace {

struct Child {
  pid_t pid = -1;
  std::FILE* out = nullptr;
};

[[noreturn]] void RunPart(const std::function<Tally(uint64_t)>& explore, uint64_t part, int out) {
  const Tally tally = explore(part);
  const std::string text = absl::StrCat(tally.tried, " ", tally.disks.size(), " ", tally.left, " ", tally.violations,
                                        " ", tally.first, "\n");
  std::FILE* const to = fdopen(out, "w");
  const bool told = to != nullptr && std::fwrite(text.data(), 1, text.size(), to) == text.size() &&
                    std::fwrite(tally.disks.data(), sizeof(uint64_t), tally.disks.size(), to) == tally.disks.size() &&
                    std::fclose(to) == 0;
  _exit(told ? 0 : 1);
}

Child Start(const std::function<Tally(uint64_t)>& explore, uint64_t part) {
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) return {};
  std::fflush(stdout);
  Child child{fork(), nullptr};
  if (child.pid == 0) RunPart(explore, part, ends[1]);
  close(ends[1]);
  child.out = fdopen(ends[0], "r");
  return child;
}

// What RunPart wrote; false where it did not come to that.
bool Read(std::FILE* out, Tally& tally) {
  std::array<char, 4096> line{};
  if (out == nullptr || std::fgets(line.data(), line.size(), out) == nullptr) return false;
  std::istringstream words(line.data());
  if (!(words >> tally.tried >> tally.distinct >> tally.left >> tally.violations)) return false;
  std::getline(words >> std::ws, tally.first);
  if (tally.violations != 0) return true;
  tally.disks.resize(tally.distinct);
  return std::fread(tally.disks.data(), sizeof(uint64_t), tally.disks.size(), out) == tally.disks.size();
}

void Add(const Child& child, Tally& sum) {
  Tally tally;
  const bool said = Read(child.out, tally);
  if (child.out != nullptr) std::fclose(child.out);
  int status = 0;
  waitpid(child.pid, &status, 0);
  const bool stopped = tally.violations != 0;  // it may still be writing when nobody reads
  if (!said || (status != 0 && !stopped)) tally = {0, 0, 1, absl::StrCat("a process ended with ", status)};
  sum.tried += tally.tried;
  sum.left += tally.left;
  sum.violations += tally.violations;
  if (sum.first.empty()) sum.first = tally.first;
  sum.disks.insert(sum.disks.end(), tally.disks.begin(), tally.disks.end());
}

}  // namespace

Tally ExploreInParts(uint64_t parts, const std::function<Tally(uint64_t part)>& explore) {
  std::vector<Child> children;
  for (uint64_t part = 0; part < parts; ++part) children.push_back(Start(explore, part));
  Tally sum;
  for (const Child& child : children) Add(child, sum);
  std::sort(sum.disks.begin(), sum.disks.end());
  sum.disks.erase(std::unique(sum.disks.begin(), sum.disks.end()), sum.disks.end());
  sum.distinct = sum.disks.size();
  return sum;
}

}  // namespace ckptd::crash
