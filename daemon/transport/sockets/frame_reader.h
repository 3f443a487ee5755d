// Frames of Move (move_frame.h) out of a stream of bytes that comes as it comes. Data goes to its place by way of a
// buffer that stays in the cache, from which one pass sums it and stores it around the cache: written to its place at
// once, memory would be read before it is written, and once more for the sum. Of everything else there are at most
// MostOf(kind) bytes. Pure; one thread.
#ifndef CKPTD_DAEMON_TRANSPORT_SOCKETS_FRAME_READER_H_
#define CKPTD_DAEMON_TRANSPORT_SOCKETS_FRAME_READER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/transport/move_frame.h"

namespace ckptd::transport {

class FrameReader {
 public:
  // So many bytes as are there now, at most into.size(); 0: none now, or none any more.
  using Source = std::function<size_t(std::span<std::byte> into)>;
  explicit FrameReader(Source source) : source_(std::move(source)) {}

  // What is whole: one of the three.
  struct Whole {
    FrameKind kind{};
    std::string body;   // of all but data
    size_t data = 0;    // so many bytes wait for Place; dropped when the next call is another
    size_t placed = 0;  // so many bytes are where the last Place said
    uint32_t crc = 0;   // CRC-32C of these
  };
  // PROTOCOL for what is no frame; afterwards it is of no use.
  [[nodiscard]] absl::StatusOr<std::optional<Whole>> Take();
  // Right after Take() gave data, with its size. Its CRC-32C: all of it is there. Nothing: Take() will say when it is.
  [[nodiscard]] std::optional<uint32_t> Place(std::span<std::byte> into);

 private:
  [[nodiscard]] bool Fill();
  [[nodiscard]] bool Drop();
  [[nodiscard]] absl::StatusOr<bool> ReadHead();
  [[nodiscard]] bool ReadBody();

  const Source source_;
  std::string head_;  // until the frame is known
  std::optional<FrameOpening> frame_;
  std::string body_;
  size_t filled_ = 0;           // of body_
  size_t unplaced_ = 0;         // bytes of data that were announced and not asked for
  std::span<std::byte> place_;  // what is missing
  size_t placing_ = 0;          // in all; 0: nothing
  uint32_t crc_ = 0;            // of what is there of it
  std::vector<std::byte> buffer_;
};

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_SOCKETS_FRAME_READER_H_
