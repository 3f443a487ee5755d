#include "daemon/format/canonical.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "daemon/base/errors.h"

namespace ckptd {
namespace {

bool IsWrapper(absl::string_view component) {
  return component == "module" || component == "_orig_mod" || component == "_checkpoint_wrapped_module";
}

}  // namespace

std::string CanonicalName(absl::string_view name) {
  std::vector<absl::string_view> components = absl::StrSplit(name, '.');
  components.erase(std::remove_if(components.begin(), components.end() - 1, IsWrapper), components.end() - 1);
  return absl::StrJoin(components, ".");
}

absl::StatusOr<std::vector<std::string>> CanonicalNames(const std::vector<std::string>& names) {
  std::vector<std::string> canonical;
  canonical.reserve(names.size());
  for (const std::string& name : names) canonical.push_back(CanonicalName(name));
  std::vector<size_t> order(names.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return canonical[a] < canonical[b]; });
  auto twice =
      std::adjacent_find(order.begin(), order.end(), [&](size_t a, size_t b) { return canonical[a] == canonical[b]; });
  if (twice == order.end()) return canonical;
  return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat("tensors ", names[*twice], " and ", names[*(twice + 1)],
                                                         " are both stored as ", canonical[*twice]));
}

}  // namespace ckptd
