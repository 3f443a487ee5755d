#include "daemon/transport/tls/tls_wire.h"

#include <openssl/err.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/transport/tls/openssl_handles.h"
#include "daemon/transport/tls/tls_identity.h"

namespace ckptd::transport {
namespace {

constexpr size_t kBatch = 128 << 10;  // bytes that are encrypted before they are sent: they stay in the cache
constexpr size_t kMostUnsent = 2 * kBatch;

}  // namespace

// OpenSSL's way to the socket: it writes to the buffer, which always takes it, and reads as one reads a socket.
struct TlsWireBio {
  static int Write(BIO* bio, const char* bytes, size_t size, size_t* taken) {
    auto* const wire = static_cast<TlsWire*>(BIO_get_data(bio));
    const auto* const begin = reinterpret_cast<const std::byte*>(bytes);
    // Whoever asks again and again for a new key, and does not listen, is not answered for ever.
    if (wire->Unsent() + size > kMostUnsent) wire->GiveUp();
    if (!wire->mute_) wire->out_.insert(wire->out_.end(), begin, begin + size);
    *taken = size;
    return 1;
  }
  static int Read(BIO* bio, char* into, size_t size, size_t* got) {
    const auto* const wire = static_cast<TlsWire*>(BIO_get_data(bio));
    BIO_clear_retry_flags(bio);
    ssize_t came = 0;
    do came = recv(wire->fd(), into, size, 0);
    while (came < 0 && errno == EINTR);
    if (came < 0 && TlsWire::WouldBlock(errno)) BIO_set_retry_read(bio);
    *got = came > 0 ? static_cast<size_t>(came) : 0;
    return came > 0 ? 1 : 0;
  }
  static long Control(BIO*, int command, long, void*) {  // NOLINT(google-runtime-int): OpenSSL's
    return command == BIO_CTRL_FLUSH ? 1 : 0;
  }
  static const BIO_METHOD* Method() {
    static const BioMethodPtr method = [] {
      BioMethodPtr made(BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "ckptd socket"));
      (void)BIO_meth_set_write_ex(made.get(), Write);
      (void)BIO_meth_set_read_ex(made.get(), Read);
      (void)BIO_meth_set_ctrl(made.get(), Control);
      return made;
    }();
    return method.get();
  }
};

absl::StatusOr<std::unique_ptr<Wire>> TlsWire::Make(UniqueFd fd, const std::shared_ptr<SSL_CTX>& context, Side side,
                                                    uint64_t rekey_bytes) {
  ERR_clear_error();
  auto wire = std::make_unique<TlsWire>(std::move(fd), rekey_bytes);
  wire->ssl_ = SSL_new(context.get());
  BIO* const bio = BIO_new(TlsWireBio::Method());
  if (wire->ssl_ == nullptr || bio == nullptr) {
    BIO_free(bio);
    return Error(ErrorCode::INTERNAL, absl::StrCat("OpenSSL: ", TakeSslError()));
  }
  BIO_set_data(bio, wire.get());
  BIO_set_init(bio, 1);
  SSL_set_bio(wire->ssl_, bio, bio);
  side == Side::kDialled ? SSL_set_connect_state(wire->ssl_) : SSL_set_accept_state(wire->ssl_);
  return wire;
}

TlsWire::~TlsWire() { SSL_free(ssl_); }

absl::StatusOr<bool> TlsWire::Shake() {
  ERR_clear_error();
  const int done = SSL_do_handshake(ssl_);
  const int error = done == 1 ? SSL_ERROR_NONE : SSL_get_error(ssl_, done);
  (void)Flush();  // an alert, too
  if (error == SSL_ERROR_NONE) return true;
  if (error == SSL_ERROR_WANT_READ && !mute_) return false;
  const long verified = SSL_get_verify_result(ssl_);  // NOLINT(google-runtime-int): OpenSSL's
  const std::string reason = TakeSslError();
  return Error(
      ErrorCode::AGENT_UNREACHABLE,
      absl::StrCat("TLS: ", reason.empty() ? "the other end hung up" : reason, verified == X509_V_OK ? "" : ": ",
                   verified == X509_V_OK ? "" : X509_verify_cert_error_string(verified)));
}

std::optional<CertificateNames> TlsWire::names() const { return NamesOfPeer(ssl_); }

size_t TlsWire::Read(std::span<std::byte> into) {
  size_t got = 0;
  while (got < into.size() && !read_over_) {
    ERR_clear_error();
    size_t more = 0;
    const int ok = SSL_read_ex(ssl_, into.data() + got, into.size() - got, &more);
    got += more;
    if (ok == 1) continue;
    if (SSL_get_error(ssl_, ok) == SSL_ERROR_WANT_READ) break;
    read_over_ = true;
    const std::string reason = TakeSslError();
    if (!reason.empty()) why_over_ = absl::StrCat(": ", reason);
  }
  return got;
}

size_t TlsWire::Write(std::span<const std::byte> from, bool) {
  size_t taken = 0;
  while (taken < from.size() && Flush() && !mute_) {
    ERR_clear_error();
    if (under_key_ >= rekey_bytes_ && SSL_key_update(ssl_, SSL_KEY_UPDATE_NOT_REQUESTED) == 1) under_key_ = 0;
    size_t more = 0;
    if (SSL_write_ex(ssl_, from.data() + taken, std::min(kBatch, from.size() - taken), &more) != 1) GiveUp();
    taken += more;
    under_key_ += more;
  }
  (void)Flush();
  return taken;
}

bool TlsWire::Flush() {
  while (Unsent() != 0 && !mute_) {
    const ssize_t took = send(fd(), out_.data() + sent_, Unsent(), MSG_NOSIGNAL);
    if (took >= 0) {
      sent_ += static_cast<size_t>(took);
    } else if (WouldBlock(errno)) {
      return false;
    } else if (errno != EINTR) {
      mute_ = true;
    }
  }
  out_.clear();
  sent_ = 0;
  return true;
}

void TlsWire::EndWrites() {
  ERR_clear_error();
  (void)SSL_shutdown(ssl_);
  (void)Flush();
}

uint32_t TlsWire::waits_for() const {
  uint32_t events = 0;
  if (!read_over_) events |= EPOLLIN;
  if (Unsent() != 0) events |= EPOLLOUT;
  return events;
}

}  // namespace ckptd::transport
