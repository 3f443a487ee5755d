#include "client/core/image/layout.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>

#include "client/core/image/header.h"
#include "client/core/image/table.h"

namespace ckptd {
namespace {

constexpr char kExtraPrefix[] = "__ckptd_extra__.rank-";  // a name that is reserved

using Members = std::vector<uint32_t>;  // the tensors of one image, in order

std::string Padded(uint64_t number, size_t digits) {
  std::string text = std::to_string(number);
  return text.size() < digits ? std::string(digits - text.size(), '0') + text : text;
}

uint64_t RoundUp(uint64_t bytes) { return (bytes + kImageAlignment - 1) / kImageAlignment * kImageAlignment; }

class Builder {
 public:
  Builder(std::span<const TensorSpec> tensors, const TensorTable& table, const LayoutOptions& options)
      : tensors_(tensors), table_(table), options_(options) {}

  ImageError Build(Layout* layout);

 private:
  [[nodiscard]] Members Order() const;
  ImageError Divide();
  [[nodiscard]] uint64_t TextBound(uint32_t tensor) const;
  ImageError Place(size_t part, Layout* layout) const;
  [[nodiscard]] std::vector<HeaderAlias> AliasesOf(const Members& members) const;

  std::span<const TensorSpec> tensors_;
  const TensorTable& table_;
  const LayoutOptions& options_;
  std::vector<Members> parts_;
};

ImageError Builder::Build(Layout* layout) {
  *layout = Layout{};
  if (ImageError bad = Divide(); !bad.ok()) return bad;
  for (size_t part = 0; part < parts_.size(); ++part) {
    if (ImageError bad = Place(part, layout); !bad.ok()) return bad;
  }
  return {};
}

Members Builder::Order() const {
  Members order(tensors_.size());
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(), [this](uint32_t a, uint32_t b) {
    if (table_.Chunk(a) != table_.Chunk(b)) return table_.Chunk(a) < table_.Chunk(b);
    uint32_t bits_a = DtypeBits(tensors_[a].dtype), bits_b = DtypeBits(tensors_[b].dtype);
    return bits_a != bits_b ? bits_a > bits_b : table_.Position(a) < table_.Position(b);
  });
  return order;
}

// Which image a tensor is in: a new one begins with the next chunk of a name, or when the header would get too long.
ImageError Builder::Divide() {
  const HeaderLimits& limits = options_.limits;
  const uint64_t empty = kEmptyHeaderBound + TensorTextBound(PadTensorName(options_.rank, UINT32_MAX), 1);
  uint64_t text = empty;
  parts_.emplace_back();
  for (uint32_t tensor : Order()) {
    uint64_t bound = TextBound(tensor);
    if (bound > limits.max_header_bytes || empty > limits.max_header_bytes - bound) {
      return {ImageErrorKind::kLimit, tensor, "a tensor with its aliases does not fit into one header"};
    }
    Members* part = &parts_.back();
    bool next_chunk = !part->empty() && table_.Chunk(part->front()) != table_.Chunk(tensor);
    if (next_chunk || text + bound > limits.max_header_bytes) {
      part = &parts_.emplace_back();
      text = empty;
    }
    part->push_back(tensor);
    text += bound;
  }
  if (parts_.size() <= limits.max_images && tensors_.size() + parts_.size() <= limits.max_tensors) return {};
  return {ImageErrorKind::kLimit, 0, std::to_string(parts_.size()) + " images for one rank are too many"};
}

uint64_t Builder::TextBound(uint32_t tensor) const {
  uint64_t bound = TensorTextBound(tensors_[tensor].name, tensors_[tensor].shape.size());
  table_.ForEachAlias(tensor, [&](const AliasSpec& alias) { bound += AliasTextBound({alias.name, alias.target}); });
  return bound;
}

std::vector<HeaderAlias> Builder::AliasesOf(const Members& members) const {
  std::vector<HeaderAlias> aliases;
  for (uint32_t tensor : members) {
    table_.ForEachAlias(tensor, [&](const AliasSpec& alias) { aliases.push_back({alias.name, alias.target}); });
  }
  std::sort(aliases.begin(), aliases.end(), [](const HeaderAlias& a, const HeaderAlias& b) { return a.name < b.name; });
  return aliases;
}

ImageError Builder::Place(size_t part, Layout* layout) const {
  const bool last = part + 1 == parts_.size();
  LayoutImage& image = layout->images.emplace_back();
  std::vector<HeaderTensor> rows;
  uint64_t end = 0;
  for (uint32_t index : parts_[part]) {
    const TensorSpec& tensor = tensors_[index];
    uint64_t bytes = *TensorBytes(tensor.dtype, tensor.shape);
    rows.push_back({tensor.name, tensor.dtype, tensor.shape, tensor.saved_offsets, end, end + bytes});
    image.tensors.push_back({index, end, bytes});
    end += bytes;
    if (end > kMaxFormatNumber) return {ImageErrorKind::kSize, index, "the rank's state is beyond the format"};
  }
  // The header is a multiple of 4096 by itself, so this makes the image one.
  const uint64_t least = last ? options_.extra_capacity : 0;
  if (least > kMaxFormatNumber / 2) return {ImageErrorKind::kLimit, 0, "the extra tensor is beyond the format"};
  const uint64_t filler = RoundUp(end + least) - end;
  const std::string name = last ? ExtraTensorName(options_.rank) : PadTensorName(options_.rank, part);
  rows.push_back({name, Dtype::kU8, {&filler, 1}, {}, end, end + filler});
  image.tensors.push_back({kFiller, end, filler});
  image.header = WriteHeader(rows, AliasesOf(parts_[part]));
  image.slot_offset = layout->slot_bytes;
  image.bytes = image.header.size() + end + filler;
  for (PlacedTensor& tensor : image.tensors) tensor.slot_offset += image.slot_offset + image.header.size();
  layout->slot_bytes += image.bytes;
  layout->extra_offset = image.tensors.back().slot_offset;
  layout->extra_bytes = filler;
  return {};
}

}  // namespace

std::string ExtraTensorName(uint32_t rank) { return kExtraPrefix + Padded(rank, 5); }

bool IsExtraTensor(std::string_view name) { return name.starts_with(kExtraPrefix); }

std::string PadTensorName(uint32_t rank, uint64_t part) {
  return std::string(kReservedPrefix) + "pad__.rank-" + Padded(rank, 5) + ".part-" + Padded(part, 2);
}

ImageError BuildLayout(std::span<const TensorSpec> tensors, std::span<const AliasSpec> aliases,
                       const LayoutOptions& options, Layout* layout) {
  TensorTable table(tensors, aliases, options.limits);
  if (!table.Check()) return table.error();
  return Builder(tensors, table, options).Build(layout);
}

}  // namespace ckptd
