#include "daemon/format/image_notes.h"

#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/core/image/scanner.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"

namespace ckptd {
namespace {

constexpr uint64_t kMaxName = 1024;
constexpr size_t kMaxDims = 16;

bool Numbers(Scanner& in, std::vector<uint64_t>* out) {
  if (!in.Take('[', "before the offsets")) return false;
  if (in.TryTake(']')) return true;
  for (bool more = true; more;) {
    uint64_t number = 0;
    if (out->size() == kMaxDims) return in.Fail(ImageErrorKind::kLimit, "too many offsets");
    if (!in.Number("an offset", &number) || !in.TakeSeparator(']', "after an offset", &more)) return false;
    out->push_back(number);
  }
  return true;
}

// {"saved_offsets": [0, 4]}
bool Shard(Scanner& in, std::vector<uint64_t>* out) {
  std::string key;
  return in.Take('{', "before a shard") && in.String("a shard's key", kMaxName, &key) && key == "saved_offsets" &&
         in.Take(':', "after a shard's key") && Numbers(in, out) && in.Take('}', "after a shard");
}

// Calls `value(name)` behind the colon of each member.
template <typename Value>
bool Members(Scanner& in, Value value) {
  if (!in.Take('{', "at the start")) return false;
  if (in.TryTake('}')) return true;
  for (bool more = true; more;) {
    std::string name;
    if (!in.String("a tensor's name", kMaxName, &name) || !in.Take(':', "after a name") || !value(std::move(name)) ||
        !in.TakeSeparator('}', "after a member", &more)) {
      return false;
    }
  }
  return true;
}

absl::Status Bad(absl::string_view origin, absl::string_view key, const Scanner& in) {
  return Error(ErrorCode::CORRUPT,
               absl::StrCat(origin, ": ", key, ": ", in.error().ok() ? "not as ckptd writes it" : in.error().message));
}

}  // namespace

absl::StatusOr<ImageNotes> ReadImageNotes(const ImageInfo& image, absl::string_view origin) {
  constexpr char kSharding[] = "DCP_SHARDING_INFO";
  constexpr char kAliases[] = "ckptd.aliases";
  ImageNotes notes;
  if (const std::string* text = image.Metadata(kSharding)) {
    Scanner in(*text, 0);
    if (!Members(in, [&](std::string name) { return Shard(in, &notes.offsets[std::move(name)]); })) {
      return Bad(origin, kSharding, in);
    }
  }
  if (const std::string* text = image.Metadata(kAliases)) {
    Scanner in(*text, 0);
    bool good = Members(in, [&](std::string alias) {
      std::string target;
      if (!in.String("an alias' target", kMaxName, &target)) return false;
      notes.aliases[target].push_back(std::move(alias));
      return true;
    });
    if (!good) return Bad(origin, kAliases, in);
  }
  return notes;
}

}  // namespace ckptd
