#include "daemon/membership/hostlist.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/membership/member.h"

namespace ckptd::membership {
namespace {

constexpr size_t kMaxDigits = 9;
constexpr size_t kMaxParts = 64;  // of one item

absl::Status Wrong(absl::string_view item, absl::string_view why) {
  return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat("hostlist \"", Shown(item), "\": ", why));
}

struct Range {
  uint32_t low = 0;
  uint32_t high = 0;
  size_t width = 0;  // of the first number as written
  [[nodiscard]] uint64_t count() const { return uint64_t{high} - low + 1; }
};

// Text that stands for itself, or the ranges of a bracket.
struct Part {
  std::string text;
  std::vector<Range> ranges;

  [[nodiscard]] uint64_t Count() const {
    uint64_t count = ranges.empty() ? 1 : 0;
    for (const Range& range : ranges) count += range.count();
    return count;
  }
  [[nodiscard]] size_t Longest() const {
    size_t longest = text.size();
    for (const Range& range : ranges) longest = std::max({longest, range.width, absl::StrCat(range.high).size()});
    return longest;
  }
  // The `index`-th of what it stands for.
  void AppendTo(std::string* name, uint64_t index) const {
    absl::StrAppend(name, text);
    for (const Range& range : ranges) {
      if (index < range.count()) {
        absl::StrAppendFormat(name, "%0*d", static_cast<int>(range.width), range.low + index);
        return;
      }
      index -= range.count();
    }
  }
};

absl::StatusOr<uint32_t> ParseNumber(absl::string_view text, absl::string_view item) {
  const bool digits =
      !text.empty() && text.size() <= kMaxDigits && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
  uint32_t number = 0;
  if (digits && absl::SimpleAtoi(text, &number)) return number;
  return Wrong(item, absl::StrCat("\"", Shown(text), "\" is no number of 1 to ", kMaxDigits, " digits"));
}

absl::StatusOr<Range> ParseRange(absl::string_view text, absl::string_view item) {
  const size_t dash = text.find('-');
  const absl::string_view first = text.substr(0, dash);
  Range range;
  range.width = first.size();
  CKPTD_ASSIGN_OR_RETURN(range.low, ParseNumber(first, item));
  range.high = range.low;
  if (dash != absl::string_view::npos) {
    CKPTD_ASSIGN_OR_RETURN(range.high, ParseNumber(text.substr(dash + 1), item));
  }
  if (range.high < range.low) return Wrong(item, absl::StrCat("range ", Shown(text), " goes down"));
  return range;
}

absl::StatusOr<Part> ParseBracket(absl::string_view inside, absl::string_view item) {
  Part part;
  for (absl::string_view text : absl::StrSplit(inside, ',')) {
    CKPTD_ASSIGN_OR_RETURN(Range range, ParseRange(text, item));
    part.ranges.push_back(range);
  }
  return part;
}

absl::StatusOr<std::vector<Part>> ParseItem(absl::string_view item) {
  std::vector<Part> parts;
  for (absl::string_view rest = item; !rest.empty();) {
    if (parts.size() == kMaxParts) return Wrong(item, absl::StrCat("more than ", kMaxParts, " parts"));
    const size_t open = rest.find_first_of("[]");
    if (open != 0) {
      parts.push_back({std::string(rest.substr(0, open)), {}});
      rest.remove_prefix(std::min(open, rest.size()));
      continue;
    }
    const size_t close = rest.find_first_of("[]", 1);
    if (rest[0] == ']' || close == absl::string_view::npos || rest[close] == '[')
      return Wrong(item, "brackets open and close in turn, and do not nest");
    CKPTD_ASSIGN_OR_RETURN(Part part, ParseBracket(rest.substr(1, close - 1), item));
    parts.push_back(std::move(part));
    rest.remove_prefix(close + 1);
  }
  if (parts.empty()) return Wrong(item, "a name is empty");
  return parts;
}

// How many names the parts stand for; `most` + 1 stands for all larger numbers.
uint64_t CountOf(const std::vector<Part>& parts, uint64_t most) {
  uint64_t count = 1;
  for (const Part& part : parts) {
    count *= std::min(part.Count(), most + 1);  // both at most 2^20: no overflow
    count = std::min(count, most + 1);
  }
  return count;
}

void AppendNames(const std::vector<Part>& parts, uint64_t count, std::vector<std::string>* names) {
  std::vector<uint64_t> indices(parts.size(), 0);
  for (uint64_t i = 0; i < count; ++i) {
    std::string name;
    for (size_t part = 0; part < parts.size(); ++part) parts[part].AppendTo(&name, indices[part]);
    names->push_back(std::move(name));
    for (size_t part = parts.size(); part-- > 0;) {
      if (++indices[part] < parts[part].Count()) break;
      indices[part] = 0;
    }
  }
}

// The end of the item that begins at 0: a comma outside brackets.
size_t ItemEnd(absl::string_view text) {
  bool inside = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == ',' && !inside) return i;
    if (text[i] == '[' || text[i] == ']') inside = text[i] == '[';
  }
  return text.size();
}

absl::Status ExpandItem(absl::string_view item, size_t max, std::vector<std::string>* names) {
  CKPTD_ASSIGN_OR_RETURN(std::vector<Part> parts, ParseItem(item));
  size_t longest = 0;
  for (const Part& part : parts) longest += part.Longest();
  if (longest > kMaxNameBytes)
    return Wrong(item, absl::StrCat("a name of ", longest, " bytes; at most ", kMaxNameBytes));
  const uint64_t room = max - names->size();
  const uint64_t count = CountOf(parts, room);
  if (count > room) return Wrong(item, absl::StrCat("the list stands for more than ", max, " names"));
  AppendNames(parts, count, names);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ExpandHostlist(absl::string_view text, size_t max) {
  if (text.size() > kMaxHostlistBytes)
    return Wrong(text, absl::StrCat(text.size(), " bytes; at most ", kMaxHostlistBytes));
  std::vector<std::string> names;
  for (absl::string_view rest = text;;) {
    const size_t end = ItemEnd(rest);
    CKPTD_RETURN_IF_ERROR(ExpandItem(rest.substr(0, end), max, &names));
    if (end == rest.size()) return names;
    rest.remove_prefix(end + 1);
  }
}

}  // namespace ckptd::membership
