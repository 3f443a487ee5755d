#include "daemon/transport/outbox.h"

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"

namespace ckptd::transport {

absl::Status Outbox::CheckRoom(const LinkMessage& message, size_t freed) const {
  const auto refuse = [&message](absl::string_view why) {
    return Error(ErrorCode::REFUSED, absl::StrCat("job ", message.job(), ", ", NameOf(message.kind()), " of ",
                                                  message.bytes(), " B: ", why));
  };
  if (message.bytes() > kMaxLinkMessage) return refuse(absl::StrCat("a message has at most ", kMaxLinkMessage, " B"));
  if (bytes_ - freed + message.bytes() > limits_.bytes)
    return refuse(absl::StrCat(bytes_, " B wait for this peer already, at most ", limits_.bytes));
  return absl::OkStatus();
}

absl::Status Outbox::Put(LinkMessage message) {
  const auto found = waiting_.find({message.job(), message.kind()});
  const bool replaces = found != waiting_.end();
  CKPTD_RETURN_IF_ERROR(CheckRoom(message, replaces ? found->second.bytes() : 0));
  if (replaces) {
    bytes_ += message.bytes() - found->second.bytes();
    found->second = std::move(message);
    ++replaced_;
    return absl::OkStatus();
  }
  if (turns_.size() == limits_.messages)
    return Error(ErrorCode::REFUSED,
                 absl::StrCat("job ", message.job(), ": ", turns_.size(), " messages wait for this peer already"));
  Key key(message.job(), message.kind());
  bytes_ += message.bytes();
  waiting_.emplace(key, std::move(message));
  turns_.push_back(std::move(key));
  return absl::OkStatus();
}

std::optional<LinkMessage> Outbox::Take() {
  if (turns_.empty()) return std::nullopt;
  auto node = waiting_.extract(turns_.front());
  turns_.pop_front();
  bytes_ -= node.mapped().bytes();
  return std::move(node.mapped());
}

}  // namespace ckptd::transport
