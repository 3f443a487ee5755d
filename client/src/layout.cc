#include "client/src/layout.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstring>

#include "client/core/copy/crc32c.h"
#include "client/core/image/layout.h"
#include "client/src/failure.h"

namespace ckptd {
namespace {

constexpr uint64_t kMinExtra = 64 << 10;
alignas(64) constexpr char kZeros[4096] = {};  // a pad is shorter than this

std::vector<TensorSpec> Specs(const Table& table) {
  std::vector<TensorSpec> specs(table.count());
  ptrdiff_t at = 0;
  for (uint64_t i = 0; i < table.count(); ++i) {
    specs[i].name = table.name(i);
    specs[i].dtype = static_cast<Dtype>(table.dtypes[i]);
    const ptrdiff_t end = at + table.dims[i];
    specs[i].shape.assign(table.shapes.begin() + at, table.shapes.begin() + end);
    if (!table.shard_offsets.empty()) {
      specs[i].saved_offsets.assign(table.shard_offsets.begin() + at, table.shard_offsets.begin() + end);
    }
    at = end;
  }
  return specs;
}

std::vector<AliasSpec> Aliases(const Table& table) {
  std::vector<AliasSpec> aliases(table.alias_of.size());
  for (uint64_t i = 0; i < aliases.size(); ++i) {
    aliases[i].name = table.alias(i);
    aliases[i].target = table.name(table.alias_of[i]);
  }
  return aliases;
}

void TakeImage(LayoutImage& image, bool last, Shape* shape) {
  for (const PlacedTensor& placed : image.tensors) {
    TensorPlace place = {placed.slot_offset, placed.bytes};
    if (placed.source == kFiller) {
      if (!last && place.bytes > 0) shape->pads.push_back(place);
      continue;
    }
    shape->tensors[placed.source] = place;
    if (place.bytes > 0) shape->order.push_back(placed.source);
  }
  shape->header_at.push_back({image.slot_offset, image.header.size()});
  shape->header_bytes += image.header.size();
  shape->header_crc = Crc32c(shape->header_crc, image.header.data(), image.header.size());
  shape->headers.push_back(std::move(image.header));
}

bool WriteAll(int fd, const std::string& bytes) {
  for (size_t at = 0; at < bytes.size();) {
    ssize_t wrote = write(fd, bytes.data() + at, bytes.size() - at);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return false;
    at += static_cast<size_t>(wrote);
  }
  return true;
}

// Sealed, because the agent reads it while the trainer could still write.
int32_t WriteHeaderFile(Shape* shape) {
  UniqueFd file(memfd_create("ckpt-headers", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.valid()) return Fail(code::INTERNAL, "memfd for the headers: %s", strerror(errno));
  for (const std::string& header : shape->headers) {
    if (!WriteAll(file.get(), header)) return Fail(code::INTERNAL, "writing the headers: %s", strerror(errno));
  }
  if (fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) != 0) {
    return Fail(code::INTERNAL, "sealing the headers: %s", strerror(errno));
  }
  shape->header_file = std::move(file);
  return 0;
}

// A piece, and how far its source may go on: copies never cross from one allocation of a GPU into the next.
struct Part {
  Piece piece;
  uint64_t source_end = UINT64_MAX;
};

bool Follows(const Part& last, const Piece& next) {
  const Piece& piece = last.piece;
  if (piece.lane != next.lane || piece.stays != next.stays || piece.slot_offset + piece.bytes != next.slot_offset)
    return false;
  if (piece.source == nullptr || next.source == nullptr) return piece.source == next.source;
  return piece.source + piece.bytes == next.source &&
         (piece.lane == DeviceTensors::kHost || reinterpret_cast<uint64_t>(next.source) < last.source_end);
}

// Joins those that continue in slot and memory: few large copies instead of many small.
void Join(std::vector<Part> parts, std::vector<Piece>* pieces) {
  std::sort(parts.begin(), parts.end(),
            [](const Part& a, const Part& b) { return a.piece.slot_offset < b.piece.slot_offset; });
  Part last;
  for (const Part& part : parts) {
    if (part.piece.bytes == 0) continue;
    if (last.piece.bytes > 0 && Follows(last, part.piece)) {
      last.piece.bytes += part.piece.bytes;
      continue;
    }
    if (last.piece.bytes > 0) pieces->push_back(last.piece);
    last = part;
  }
  if (last.piece.bytes > 0) pieces->push_back(last.piece);
}

Part TensorPart(const Registration& registration, uint32_t tensor) {
  const TensorPlace& place = registration.shape->tensors[tensor];
  bool eager = (registration.flags[tensor] & CKPT_EAGER) != 0;
  const auto* source = static_cast<const char*>(registration.data[tensor]);
  int16_t lane = registration.devices.lane(tensor);
  uint64_t end = lane != DeviceTensors::kHost ? registration.devices.allocation_end[tensor] : UINT64_MAX;
  const bool stays = (registration.flags[tensor] & CKPT_STAYS) != 0;
  return {{eager ? nullptr : source, place.slot_offset, place.bytes, lane, stays}, end};
}

// Where eager tensors of GPUs are copied out from.
Part StagedPart(const Registration& registration, const DeviceTensors::Staged& staged) {
  const TensorPlace& place = registration.shape->tensors[staged.tensor];
  return {{reinterpret_cast<const char*>(staged.copy), place.slot_offset, place.bytes,
           registration.devices.lane(staged.tensor)}};
}

void BuildPieces(Registration* registration) {
  const Shape& shape = *registration->shape;
  std::vector<bool> is_staged(registration->flags.size());
  for (const DeviceTensors::Staged& staged : registration->devices.staged) is_staged[staged.tensor] = true;
  std::vector<Part> parts;
  parts.reserve(shape.order.size() + shape.headers.size() + shape.pads.size() + 1);
  for (size_t i = 0; i < shape.headers.size(); ++i) {
    parts.push_back({{shape.headers[i].data(), shape.header_at[i].slot_offset, shape.header_at[i].bytes,
                      DeviceTensors::kHost, /*stays=*/true}});
  }
  for (uint32_t tensor : shape.order) {
    if (!is_staged[tensor]) parts.push_back(TensorPart(*registration, tensor));
  }
  for (const DeviceTensors::Staged& staged : registration->devices.staged) {
    parts.push_back(StagedPart(*registration, staged));
  }
  for (const TensorPlace& pad : shape.pads) {
    parts.push_back({{kZeros, pad.slot_offset, pad.bytes, DeviceTensors::kHost, /*stays=*/true}});
  }
  parts.push_back({{nullptr, shape.extra.slot_offset, shape.extra.bytes}});
  registration->pieces.reserve(parts.size());
  Join(std::move(parts), &registration->pieces);
}

}  // namespace

uint64_t ExtraCapacity(uint64_t need) { return need > (UINT64_MAX >> 3) ? UINT64_MAX : std::max(kMinExtra, 4 * need); }

int32_t BuildShape(Table table, uint32_t rank, uint64_t extra_capacity, std::shared_ptr<const Shape>* out) {
  auto shape = std::make_shared<Shape>();
  shape->table = std::move(table);
  LayoutOptions options;
  options.rank = rank;
  options.extra_capacity = extra_capacity;
  Layout layout;
  ImageError error = BuildLayout(Specs(shape->table), Aliases(shape->table), options, &layout);
  if (!error.ok()) {
    int32_t number = error.kind == ImageErrorKind::kDtype ? code::UNSUPPORTED_DTYPE : code::INVALID_ARGUMENT;
    return Fail(number, "table: %s", error.message.c_str());
  }
  shape->tensors.resize(shape->table.count());
  shape->order.reserve(shape->table.count());
  for (LayoutImage& image : layout.images) TakeImage(image, &image == &layout.images.back(), shape.get());
  shape->extra = {layout.extra_offset, layout.extra_bytes};
  shape->slot_bytes = layout.slot_bytes;
  if (int32_t rc = WriteHeaderFile(shape.get())) return rc;
  *out = std::move(shape);
  return 0;
}

int32_t BuildRegistration(std::shared_ptr<const Shape> shape, const void* const* data, const uint8_t* flags,
                          uint64_t number, Lanes& lanes, std::shared_ptr<const Registration>* out) {
  auto registration = std::make_shared<Registration>();
  registration->number = number;
  uint64_t count = shape->table.count();
  registration->data.assign(data, data + count);
  registration->flags.assign(count, 0);
  if (flags != nullptr) registration->flags.assign(flags, flags + count);
  for (uint32_t tensor : shape->order) {
    if (data[tensor] == nullptr) {
      std::string_view name = shape->table.name(tensor);
      return Fail(code::INVALID_ARGUMENT, "tensor \"%.*s\" has no address", static_cast<int>(name.size()), name.data());
    }
    bool eager = (registration->flags[tensor] & CKPT_EAGER) != 0;
    (eager ? registration->eager : registration->lazy).push_back(tensor);
    if (eager) registration->eager_bytes += shape->tensors[tensor].bytes;
  }
  registration->shape = std::move(shape);
  if (int32_t rc = FindDeviceTensors(lanes, registration.get())) return rc;
  BuildPieces(registration.get());
  *out = std::move(registration);
  return 0;
}

}  // namespace ckptd
