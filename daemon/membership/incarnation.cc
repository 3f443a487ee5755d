#include "daemon/membership/incarnation.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"

namespace ckptd::membership {
namespace {

constexpr absl::string_view kStem = "incarnation-";
constexpr size_t kDigits = 20;
constexpr size_t kMaxNames = 10'000;
constexpr int kMostLosses = 1000;

std::string PathOf(const std::string& folder, uint64_t number) {
  return absl::StrFormat("%s/%s%0*d", folder, kStem, static_cast<int>(kDigits), number);
}

// 0: the name is no number of ours.
uint64_t NumberOf(absl::string_view name) {
  uint64_t number = 0;
  const bool ours = absl::ConsumePrefix(&name, kStem) && name.size() == kDigits &&
                    std::all_of(name.begin(), name.end(), absl::ascii_isdigit);
  return ours && absl::SimpleAtoi(name, &number) ? number : 0;
}

absl::StatusOr<std::vector<uint64_t>> Numbers(Files& files, const std::string& folder) {
  CKPTD_ASSIGN_OR_RETURN(std::vector<DirEntry> entries, files.ReadDir(folder, kMaxNames));
  std::vector<uint64_t> numbers;
  for (const DirEntry& entry : entries) {
    if (const uint64_t number = NumberOf(entry.name); number != 0) numbers.push_back(number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

// False: another process has it.
absl::StatusOr<bool> Claim(Files& files, const std::string& folder, uint64_t number) {
  OpenOptions options;
  options.write = true;
  options.create = true;
  auto file = files.Open(PathOf(folder, number), options);
  if (absl::IsAlreadyExists(file.status())) return false;
  CKPTD_RETURN_IF_ERROR(file.status());
  CKPTD_RETURN_IF_ERROR((*file)->Close());
  CKPTD_RETURN_IF_ERROR(files.SyncDir(folder));
  return true;
}

}  // namespace

// A name that was free may be one that was used and removed, by others that were faster: they left a higher one, so it
// is looked for once more behind the claim.
absl::StatusOr<uint64_t> ClaimIncarnation(Files& files, const std::string& folder, uint64_t at_least) {
  CKPTD_ASSIGN_OR_RETURN(std::vector<uint64_t> numbers, Numbers(files, folder));
  for (int losses = 0; losses < kMostLosses; ++losses) {
    const uint64_t highest = numbers.empty() ? 0 : numbers.back();
    if (highest == std::numeric_limits<uint64_t>::max()) break;
    const uint64_t number = std::max(highest + 1, at_least);
    CKPTD_ASSIGN_OR_RETURN(bool claimed, Claim(files, folder, number));
    CKPTD_ASSIGN_OR_RETURN(numbers, Numbers(files, folder));
    if (!claimed || numbers.empty() || numbers.back() != number) continue;
    // Whoever lists meanwhile sees this one or a higher: what stays behind is only not tidy.
    for (const uint64_t old : numbers) {
      if (old < number) (void)files.Unlink(PathOf(folder, old));
    }
    return number;
  }
  return Error(ErrorCode::REFUSED, absl::StrCat(folder, ": no number could be claimed in it; the highest is ",
                                                numbers.empty() ? 0 : numbers.back(), ": see who else writes there"));
}

}  // namespace ckptd::membership
