// Feeds a text to the readers of everything that lies beside the images on storage: sidecar, manifest, attempt and
// decision record, deletion marker (daemon/format/records.h, daemon/json).
//
// What is accepted must follow the rules of the format, and come out of the printer as a text that reads back equal;
// and a rank's sidecar alone must make a manifest that reads back.
#include "daemon/format/records.h"

#include <google/protobuf/util/message_differencer.h>

#include <set>

#include "client/core/copy/crc32c.h"
#include "daemon/base/ids.h"
#include "proto/local/region.h"
#include "tests/fuzz/fuzz.h"

namespace ckptd::fuzz {

// A list of empty objects: three bytes of text for a message of a hundred.
const Allowed kAllowed = {1 << 20, 96};

namespace {

using google::protobuf::util::MessageDifferencer;

constexpr std::string_view kCrcMember = "\"crc32c\":";

// Our own version and checksum take the place of the input's.
template <typename Message>
Message WithoutMark(Message message) {
  message.clear_format_major();
  message.clear_format_minor();
  message.clear_crc32c();
  return message;
}

// The rules of manifest.proto, said a second time.
void CheckFileName(const std::string& name) {
  FUZZ_CHECK(name.rfind("rank-", 0) == 0 && name.find('/') == std::string::npos);
}

void CheckRules(const v1::Sidecar& sidecar) {
  FUZZ_CHECK(CheckJobName(sidecar.job()).ok() && sidecar.attempt() > 0 && sidecar.rank() < sidecar.world_size());
  unsigned __int128 sum = 0;
  for (const v1::SidecarImage& image : sidecar.images()) {
    CheckFileName(image.name());
    FUZZ_CHECK(image.bytes() % kImageAlignment == 0 && image.header_bytes() <= image.bytes());
    sum += image.bytes();
  }
  const uint64_t chunks = static_cast<uint64_t>(sidecar.chunk_crc32c_size());
  FUZZ_CHECK(sum > 0 && sum == sidecar.slot_bytes());
  FUZZ_CHECK(sidecar.chunk_bytes() >= kMinChunkBytes && sidecar.chunk_bytes() <= kMaxChunkBytes);
  FUZZ_CHECK(chunks * sidecar.chunk_bytes() >= sum && (chunks - 1) * sidecar.chunk_bytes() < sum);
}

void CheckRules(const v1::Manifest& manifest) {
  FUZZ_CHECK(CheckJobName(manifest.job()).ok() && manifest.attempt() > 0);
  unsigned __int128 sum = 0;
  std::set<uint32_t> ranks;
  std::set<std::string> names;
  for (const v1::ManifestFile& file : manifest.files()) {
    CheckFileName(file.name());
    CheckFileName(file.sidecar());
    FUZZ_CHECK(file.attempt() == manifest.attempt() && names.insert(file.name()).second);
    ranks.insert(file.rank());
    sum += file.bytes();
  }
  FUZZ_CHECK(sum == manifest.total_bytes());
  FUZZ_CHECK(!ranks.empty() && ranks.size() == manifest.world_size() && *ranks.rbegin() == ranks.size() - 1);
}

void CheckSidecar(absl::string_view text) {
  auto sidecar = ParseSidecar(text, "input");
  if (!sidecar.ok()) return;
  CheckRules(*sidecar);
  const std::string printed = SidecarText(*sidecar);
  auto again = ParseSidecar(printed, "again");
  FUZZ_CHECK(again.ok());
  FUZZ_CHECK(MessageDifferencer::Equals(WithoutMark(*sidecar), WithoutMark(*again)));
  FUZZ_CHECK(SidecarText(*again) == printed);
  if (sidecar->world_size() != 1) return;
  auto manifest = MakeManifest({printed});
  FUZZ_CHECK(manifest.ok());
  FUZZ_CHECK(ParseManifest(ManifestText(*manifest), "made").ok());
}

void CheckManifest(absl::string_view text) {
  auto manifest = ParseManifest(text, "input");
  if (!manifest.ok()) return;
  CheckRules(*manifest);
  const std::string printed = ManifestText(*manifest);
  auto again = ParseManifest(printed, "again");
  FUZZ_CHECK(again.ok());
  FUZZ_CHECK(MessageDifferencer::Equals(WithoutMark(*manifest), WithoutMark(*again)));
  FUZZ_CHECK(ManifestText(*again) == printed);
}

template <typename Record, typename Parse, typename Print>
void CheckRecord(absl::string_view text, Parse parse, Print print) {
  absl::StatusOr<Record> record = parse(text, "input");
  if (!record.ok()) return;
  absl::StatusOr<Record> again = parse(print(*record), "again");
  FUZZ_CHECK(again.ok());
  FUZZ_CHECK(MessageDifferencer::Equals(*record, *again));
}

}  // namespace

void Run(Input input) {
  const absl::string_view text(reinterpret_cast<const char*>(input.data()), input.size());
  CheckSidecar(text);
  CheckManifest(text);
  CheckRecord<v1::AttemptRecord>(text, ParseAttemptText, AttemptText);
  CheckRecord<v1::DecisionRecord>(text, ParseDecisionText, DecisionText);
  if (auto attempt = ParseMarkerText(text, "input"); attempt.ok()) {
    auto again = ParseMarkerText(MarkerText(*attempt), "again");
    FUZZ_CHECK(again.ok() && *again == *attempt);
  }
}

// The checksum that closes sidecar and manifest.
void Repair(std::vector<uint8_t>& input) {
  const std::string_view text = TextOf(input);
  const size_t at = text.rfind(kCrcMember);
  if (at == std::string_view::npos) return;
  const std::string end = std::string(kCrcMember) + std::to_string(Crc32c(0, text.data(), at)) + "}";
  input.resize(at);
  input.insert(input.end(), end.begin(), end.end());
}

}  // namespace ckptd::fuzz
