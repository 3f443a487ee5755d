// One packet on a SOCK_SEQPACKET unix socket, with descriptors.
//
// A packet is a message: it arrives whole or not at all, and its descriptors with it. It is never empty, because an
// empty packet looks like the end of the connection. A packet that does not fit, in bytes or in descriptors, breaks the
// protocol: it is refused as a whole, and every descriptor in it has an owner, or a hostile peer could fill our table.
//
// Threads: one reader and one writer at a time per socket.
#ifndef CKPTD_CLIENT_CORE_WIRE_PACKET_H_
#define CKPTD_CLIENT_CORE_WIRE_PACKET_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "client/core/wire/fds.h"
#include "proto/local/messages.h"

namespace ckptd {

// Never blocks. 0; EAGAIN: the peer's buffer is full, nothing was sent; EINVAL: empty; EMSGSIZE: too many bytes or
// descriptors; EPIPE, ECONNRESET: the peer is gone (never a SIGPIPE). The descriptors stay the caller's.
[[nodiscard]] int SendPacket(int socket, std::span<const uint8_t> bytes, std::span<const int> fds = {});

struct Packet {
  std::vector<uint8_t> bytes;
  std::vector<UniqueFd> fds;  // close-on-exec
};

enum class Wait : uint8_t { kNo, kYes };
enum class Fds : uint8_t { kTake, kRefuse };

// 0 and a packet; ENOTCONN: the peer has closed; EAGAIN: nothing there (kNo, or a time-out of the socket);
// EMSGSIZE: it broke the limits above, or brought descriptors that are refused (the kernel drops those); ECONNRESET:
// the peer died. On an error the packet has no bytes, but may have descriptors: closing those of a stranger may block.
// A packet that is used again keeps its memory.
[[nodiscard]] int ReceivePacket(int socket, Wait wait, Packet* packet, Fds fds = Fds::kTake);

}  // namespace ckptd

#endif  // CKPTD_CLIENT_CORE_WIRE_PACKET_H_
