// Feeds the bytes of a safetensors file, or of its first part, to every reader of headers: a file of its own, the
// images of a slot, and headers back to back as a trainer registers them.
//
// What is accepted must be what the format says, and must be the same when our writer writes it again.
#include "client/core/image/header.h"

#include <algorithm>

#include "client/core/image/parser.h"
#include "client/core/image/text.h"
#include "daemon/format/header_reader.h"
#include "daemon/format/image_notes.h"
#include "tests/fuzz/fuzz.h"

namespace ckptd::fuzz {

const Allowed kAllowed = {256 << 10, 64};

namespace {

constexpr uint64_t kSlotBytes = uint64_t{1} << 46;

bool Same(const TensorEntry& a, const TensorEntry& b) {
  return a.name == b.name && a.dtype == b.dtype && a.shape == b.shape && a.begin == b.begin && a.end == b.end;
}

bool Same(const ImageInfo& a, const ImageInfo& b) {
  return std::equal(a.tensors.begin(), a.tensors.end(), b.tensors.begin(), b.tensors.end(),
                    [](const TensorEntry& x, const TensorEntry& y) { return Same(x, y); });
}

unsigned __int128 BitsOf(const TensorEntry& tensor) {
  unsigned __int128 bits = DtypeBits(tensor.dtype);
  for (uint64_t dimension : tensor.shape) {
    bits *= dimension;
    FUZZ_CHECK(dimension <= kMaxFormatNumber && bits <= UINT64_MAX);
  }
  return bits;
}

// The rules of the format, said a second time.
void CheckRules(const ImageInfo& image, const HeaderLimits& limits) {
  uint64_t end = 0;
  for (const TensorEntry& tensor : image.tensors) {
    FUZZ_CHECK(tensor.begin == end && tensor.end >= tensor.begin && tensor.end <= kMaxFormatNumber);
    FUZZ_CHECK(BitsOf(tensor) == static_cast<unsigned __int128>(tensor.end - tensor.begin) * 8);
    FUZZ_CHECK(tensor.name.size() <= limits.max_name_bytes && tensor.shape.size() <= limits.max_dims);
    FUZZ_CHECK(ValidUtf8Prefix(tensor.name) == tensor.name.size());
    FUZZ_CHECK(image.Find(tensor.name) == &tensor);
    end = tensor.end;
  }
  FUZZ_CHECK(image.total_bytes == image.header_bytes + end);
  FUZZ_CHECK(image.by_name.size() == image.tensors.size());
}

void CheckRoundTrip(const ImageInfo& image) {
  std::vector<HeaderTensor> tensors;
  for (const TensorEntry& t : image.tensors) tensors.push_back({t.name, t.dtype, t.shape, {}, t.begin, t.end});
  const std::string header = WriteHeader(tensors, {});
  ImageInfo again;
  const uint64_t bytes = header.size() + image.total_bytes - image.header_bytes;
  const ImageError error = ParseHeader(header, bytes, ImageEnd::kExact, HeaderLimits(), &again);
  FUZZ_CHECK(error.ok());
  FUZZ_CHECK(Same(image, again));
  FUZZ_CHECK(ReadImageNotes(again, "ours").ok());
}

// The images of a slot that is as long as the input.
void ReadSlot(std::string_view text, const HeaderLimits& limits) {
  auto read = [&](uint64_t offset, char* into, size_t size) {
    FUZZ_CHECK(offset <= text.size() && size <= text.size() - offset);
    std::memcpy(into, text.data() + offset, size);
    return 0;
  };
  auto images = ReadSlotHeaders(text.size(), read, "slot", limits);
  if (!images.ok()) return;
  uint64_t sum = 0;
  for (const ImageInfo& image : *images) {
    CheckRules(image, limits);
    sum += image.total_bytes;
  }
  FUZZ_CHECK(sum == text.size());
}

}  // namespace

void Run(Input input) {
  const std::string_view text = TextOf(input);
  const absl::string_view view(text.data(), text.size());
  const HeaderLimits limits = {.max_tensors = 512, .max_name_bytes = 64, .max_dims = 6, .max_metadata = 16};
  ImageInfo image;
  if (ParseHeader(text, kSlotBytes, ImageEnd::kAtMost, limits, &image).ok()) {
    CheckRules(image, limits);
    CheckRoundTrip(image);
    (void)ReadImageNotes(image, "input").ok();
  }
  if (auto file = ReadFileHeader(view, text.size(), "file", limits); file.ok()) {
    CheckRules(*file, limits);
    FUZZ_CHECK(file->total_bytes == text.size() && Same(*file, image));
  }
  ReadSlot(text, limits);
  auto headers = ReadLayoutHeaders(view, kSlotBytes, "layout", limits);
  FUZZ_CHECK(!headers.ok() || Same(headers->front(), image));
}

// A length that claims more than there is.
void Repair(std::vector<uint8_t>& input) {
  uint64_t length = 0;
  if (input.size() < sizeof(length)) return;
  std::memcpy(&length, input.data(), sizeof(length));
  length = std::min<uint64_t>(length, input.size() - sizeof(length));
  std::memcpy(input.data(), &length, sizeof(length));
}

}  // namespace ckptd::fuzz
