// Frames of Move (move_frame.h) out of a stream of bytes that comes as it comes. Data goes from the source straight to
// its place; of everything else there are at most MostOf(kind) bytes. Pure; one thread.
#ifndef CKPTD_DAEMON_TRANSPORT_SOCKETS_FRAME_READER_H_
#define CKPTD_DAEMON_TRANSPORT_SOCKETS_FRAME_READER_H_

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>

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
  };
  // PROTOCOL for what is no frame; afterwards it is of no use.
  [[nodiscard]] absl::StatusOr<std::optional<Whole>> Take();
  // Right after Take() gave data, with its size. True: all of it is there. False: Take() will say when it is.
  [[nodiscard]] bool Place(std::span<std::byte> into);

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
};

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_SOCKETS_FRAME_READER_H_
