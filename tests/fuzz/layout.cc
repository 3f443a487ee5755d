// Feeds a table of tensors and aliases to what lays out a rank's state (client/core/image/layout.h), as a trainer may
// hand one over: any names, shapes, chunks of one tensor, limits that split the images.
//
// What our writer writes must parse, with all limits; the agent must read out of it what the table says; and the same
// table in another order must give the same bytes.
#include "client/core/image/layout.h"

#include <algorithm>
#include <optional>

#include "client/core/image/parser.h"
#include "daemon/format/header_reader.h"
#include "daemon/format/image_notes.h"
#include "proto/local/region.h"
#include "tests/fuzz/fuzz.h"

namespace ckptd::fuzz {

// A header is 4 KiB at least, and an input of a few bytes can ask for some of them.
const Allowed kAllowed = {4 << 20, 2048};

namespace {

constexpr size_t kMostRows = 64;

struct Table {
  std::vector<TensorSpec> tensors;
  std::vector<AliasSpec> aliases;
  LayoutOptions options;
};

std::string TakeName(Reader& in) { return std::string(TextOf(in.Bytes(in.Take<uint8_t>() % 24))); }

// Mostly small; sometimes any number.
uint64_t TakeNumber(Reader& in) {
  const auto small = in.Take<uint8_t>();
  return small < 224 ? small % 32 : in.Take<uint64_t>() >> (small % 32 * 2);
}

TensorSpec TakeTensor(Reader& in) {
  TensorSpec tensor;
  const auto bits = in.Take<uint8_t>();
  tensor.dtype = static_cast<Dtype>(in.Take<uint8_t>() % kDtypeCount);
  for (uint32_t i = 0; i < bits % 8; ++i) tensor.shape.push_back(TakeNumber(in));
  const bool chunk = (bits & 8) != 0;
  for (uint32_t i = 0; chunk && i < bits % 8; ++i) tensor.saved_offsets.push_back(TakeNumber(in));
  tensor.name = TakeName(in);
  return tensor;
}

Table TakeTable(Input input) {
  Reader in(input);
  Table table;
  const auto bits = in.Take<uint8_t>();
  table.options.rank = in.Take<uint16_t>();
  table.options.extra_capacity = TakeNumber(in);
  if ((bits & 1) != 0) table.options.limits.max_header_bytes = uint64_t{4096} << (bits >> 1 & 3);
  if ((bits & 8) != 0) table.options.limits.max_images = 3;
  if ((bits & 16) != 0) table.options.limits.max_tensors = 8;
  while (!in.done() && table.tensors.size() + table.aliases.size() < kMostRows) {
    if (in.Take<uint8_t>() % 4 != 0 || table.tensors.empty()) {
      table.tensors.push_back(TakeTensor(in));
    } else {
      const size_t target = in.Take<uint8_t>() % table.tensors.size();
      table.aliases.push_back({TakeName(in), table.tensors[target].name});
    }
  }
  return table;
}

bool AllZero(const std::vector<uint64_t>& numbers) {
  return std::all_of(numbers.begin(), numbers.end(), [](uint64_t number) { return number == 0; });
}

void CheckNotes(const Table& table, const ImageInfo& info, const LayoutImage& image) {
  auto notes = ReadImageNotes(info, "ours");
  FUZZ_CHECK(notes.ok());
  for (const PlacedTensor& placed : image.tensors) {
    if (placed.source == kFiller) continue;
    const TensorSpec& spec = table.tensors[placed.source];
    const auto offsets = notes->offsets.find(spec.name);
    FUZZ_CHECK(offsets != notes->offsets.end() && offsets->second.size() == spec.shape.size());
    FUZZ_CHECK(spec.saved_offsets.empty() ? AllZero(offsets->second) : offsets->second == spec.saved_offsets);
    for (const AliasSpec& alias : table.aliases) {
      if (alias.target != spec.name) continue;
      const auto found = notes->aliases.find(spec.name);
      FUZZ_CHECK(found != notes->aliases.end());
      FUZZ_CHECK(std::find(found->second.begin(), found->second.end(), alias.name) != found->second.end());
    }
  }
}

void CheckImage(const Table& table, const LayoutImage& image) {
  FUZZ_CHECK(image.bytes % kImageAlignment == 0 && image.header.size() % kImageAlignment == 0);
  ImageInfo info;
  FUZZ_CHECK(ParseHeader(image.header, image.bytes, ImageEnd::kExact, table.options.limits, &info).ok());
  FUZZ_CHECK(info.header_bytes == image.header.size() && info.tensors.size() == image.tensors.size());
  for (const PlacedTensor& placed : image.tensors) {
    if (placed.source == kFiller) continue;
    const TensorSpec& spec = table.tensors[placed.source];
    const TensorEntry* entry = info.Find(spec.name);
    FUZZ_CHECK(entry != nullptr && entry->dtype == spec.dtype && entry->shape == spec.shape);
    FUZZ_CHECK(placed.slot_offset == image.slot_offset + info.header_bytes + entry->begin);
    FUZZ_CHECK(placed.bytes == entry->end - entry->begin);
  }
  CheckNotes(table, info, image);
}

void CheckLayout(const Table& table, const Layout& layout) {
  FUZZ_CHECK(!layout.images.empty() && layout.images.size() <= table.options.limits.max_images);
  uint64_t end = 0;
  size_t placed = 0;
  std::string headers;
  for (const LayoutImage& image : layout.images) {
    FUZZ_CHECK(image.slot_offset == end);
    CheckImage(table, image);
    end += image.bytes;
    headers += image.header;
    for (const PlacedTensor& tensor : image.tensors) placed += tensor.source == kFiller ? 0 : 1;
  }
  FUZZ_CHECK(end == layout.slot_bytes && placed == table.tensors.size());
  FUZZ_CHECK(layout.extra_bytes >= table.options.extra_capacity);
  auto read = ReadLayoutHeaders(absl::string_view(headers.data(), headers.size()), end, "ours", table.options.limits);
  FUZZ_CHECK(read.ok() && read->size() == layout.images.size());
}

void CheckSameBytes(const Layout& a, const Layout& b) {
  FUZZ_CHECK(a.slot_bytes == b.slot_bytes && a.images.size() == b.images.size());
  for (size_t i = 0; i < a.images.size(); ++i) FUZZ_CHECK(a.images[i].header == b.images[i].header);
}

}  // namespace

void Run(Input input) {
  Table table = TakeTable(input);
  Layout layout;
  const bool built = BuildLayout(table.tensors, table.aliases, table.options, &layout).ok();
  if (built) CheckLayout(table, layout);
  std::reverse(table.tensors.begin(), table.tensors.end());
  std::reverse(table.aliases.begin(), table.aliases.end());
  Layout reversed;
  FUZZ_CHECK(BuildLayout(table.tensors, table.aliases, table.options, &reversed).ok() == built);
  if (built) CheckSameBytes(layout, reversed);
}

}  // namespace ckptd::fuzz
