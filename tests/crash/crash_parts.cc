#include "tests/crash/crash_parts.h"

#include <sys/wait.h>
#include <unistd.h>

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
  const std::string text =
      absl::StrCat(tally.tried, " ", tally.distinct, " ", tally.left, " ", tally.violations, " ", tally.first, "\n");
  const bool told = write(out, text.data(), text.size()) == static_cast<ssize_t>(text.size());
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

void Add(const Child& child, Tally& sum) {
  std::array<char, 4096> line{};
  Tally tally;
  const bool printed = child.out != nullptr && std::fgets(line.data(), line.size(), child.out) != nullptr;
  std::istringstream words(printed ? line.data() : "");
  const bool said = static_cast<bool>(words >> tally.tried >> tally.distinct >> tally.left >> tally.violations);
  if (child.out != nullptr) std::fclose(child.out);
  int status = 0;
  waitpid(child.pid, &status, 0);
  if (!said || status != 0) tally = {0, 0, 1, absl::StrCat("a process ended with ", status)};
  if (said && tally.violations != 0) std::getline(words >> std::ws, tally.first);
  sum.tried += tally.tried;
  sum.distinct += tally.distinct;
  sum.left += tally.left;
  sum.violations += tally.violations;
  if (sum.first.empty()) sum.first = tally.first;
}

}  // namespace

Tally ExploreInParts(uint64_t parts, const std::function<Tally(uint64_t part)>& explore) {
  std::vector<Child> children;
  for (uint64_t part = 0; part < parts; ++part) children.push_back(Start(explore, part));
  Tally sum;
  for (const Child& child : children) Add(child, sum);
  return sum;
}

}  // namespace ckptd::crash
