// From the table of tensors to the list of copies that fills a slot.
//
// A Shape is what table and extra capacity decide: image headers, offsets, and the sealed memfd that carries the
// headers to the agent. A Registration is a Shape with the addresses of today. Both are immutable once made, so that a
// capture under way keeps its own while the trainer registers the next.
#ifndef CKPTD_CLIENT_SRC_LAYOUT_H_
#define CKPTD_CLIENT_SRC_LAYOUT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/core/wire/fds.h"
#include "client/core/wire/mapping.h"
#include "client/include/ckpt/ckpt.h"
#include "client/src/device_tensors.h"
#include "client/src/table.h"

namespace ckptd {

// A run of bytes of the slot. Pieces are in slot order and cover the slot without a hole.
struct Piece {
  const char* source = nullptr;  // null: the bytes are in the slot already, or on their way there
  uint64_t slot_offset = 0;
  uint64_t bytes = 0;
  int16_t lane = DeviceTensors::kHost;  // where `source` is
  bool stays = false;                   // `source` cannot go away, or that was promised
};

struct TensorPlace {
  uint64_t slot_offset = 0;
  uint64_t bytes = 0;
};

struct Shape {
  Table table;
  std::vector<std::string> headers;    // of each image
  std::vector<TensorPlace> header_at;  // of each image
  std::vector<TensorPlace> tensors;    // by index in the table
  std::vector<uint32_t> order;         // tensor indices by slot offset; those without bytes are left out
  std::vector<TensorPlace> pads;       // zero bytes at the end of all images but the last
  TensorPlace extra;
  uint64_t slot_bytes = 0;
  uint64_t header_bytes = 0;  // of the memfd
  uint32_t header_crc = 0;
  UniqueFd header_file;  // memfd, sealed
};

struct Registration {
  uint64_t number = 0;  // of the handle, from 1
  std::shared_ptr<const Shape> shape;
  std::vector<const void*> data;
  std::vector<uint8_t> flags;
  std::vector<uint32_t> eager;  // tensors copied inside ckpt_save
  std::vector<uint32_t> lazy;
  std::vector<Piece> pieces;
  uint64_t eager_bytes = 0;
  DeviceTensors devices;
};

[[nodiscard]] uint64_t ExtraCapacity(uint64_t need);

// 0 or a negative code with its sentence.
int32_t BuildShape(Table table, uint32_t rank, uint64_t extra_capacity, std::shared_ptr<const Shape>* out);

// `data` and `flags` (may be null: all lazy host memory) have one entry a tensor.
int32_t BuildRegistration(std::shared_ptr<const Shape> shape, const void* const* data, const uint8_t* flags,
                          uint64_t number, Lanes& lanes, std::shared_ptr<const Registration>* out);

}  // namespace ckptd

#endif  // CKPTD_CLIENT_SRC_LAYOUT_H_
