#include "client/src/fake_agent.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>

namespace ckptd {
namespace {

template <typename Message>
Message Parse(const Packet& packet) {
  Message message;
  EXPECT_GE(packet.bytes.size(), sizeof message);
  memcpy(&message, packet.bytes.data(), sizeof message);
  return message;
}

}  // namespace

FakeAgent::FakeAgent() {
  char directory[] = "/tmp/ckpt-fake-XXXXXX";
  directory_ = mkdtemp(directory);
  path_ = directory_ + "/sock";
  wake_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
}

FakeAgent::~FakeAgent() {
  Kill();
  rmdir(directory_.c_str());
}

void FakeAgent::Start() {
  if (!listener_.valid()) {
    listener_ = UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path, path_.data(), path_.size());
    ASSERT_EQ(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    ASSERT_EQ(listen(listener_.get(), 4), 0);
  }
  stop_ = false;
  thread_ = std::thread([this] { Serve(); });
}

void FakeAgent::Freeze() {
  stop_ = true;
  uint64_t one = 1;
  ASSERT_EQ(write(wake_.get(), &one, sizeof one), 8);
  thread_.join();
  ASSERT_EQ(read(wake_.get(), &one, sizeof one), 8);
}

void FakeAgent::Kill() {
  if (thread_.joinable()) Freeze();
  std::lock_guard lock(mutex_);
  connection_.Reset();
  listener_.Reset();
  unlink(path_.c_str());
}

void FakeAgent::Serve() {
  Packet packet;
  while (!stop_) {
    pollfd fds[] = {{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}, {connection_.get(), POLLIN, 0}};
    poll(fds, 3, -1);
    if (fds[1].revents != 0) {
      std::lock_guard lock(mutex_);
      connection_ = UniqueFd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      continue;
    }
    if (fds[2].revents == 0) continue;
    std::lock_guard lock(mutex_);
    if (ReceivePacket(connection_.get(), Wait::kNo, &packet) != 0) {
      connection_.Reset();
    } else {
      Handle(packet);
    }
  }
}

void FakeAgent::SendBytes(std::span<const uint8_t> bytes, const std::vector<int>& fds) {
  // A trainer that has just closed is no error of the test.
  (void)SendPacket(connection_.get(), bytes, fds);
}

void FakeAgent::Handle(Packet& packet) {
  auto type = static_cast<MessageType>(Parse<MessageHead>(packet).type);
  counts_[static_cast<size_t>(type)] += 1;
  if (type == MessageType::kHello) {
    HelloReplyMessage reply = {};
    reply.major = kProtocolMajorMax;
    reply.back_pressure = static_cast<uint16_t>(back_pressure.load());
    Send(reply, MessageType::kHelloReply);
  } else if (type == MessageType::kJoin) {
    join_ = Parse<JoinMessage>(packet);
    if (refuse_with != 0) return Refuse(type, refuse_with, "not now");
    if (join_.ticket != ticket_) attempt_ += 1;
    ticket_ = join_.ticket;
    Load();
  } else if (type == MessageType::kLoaded) {
    loaded_ = Parse<LoadedMessage>(packet);
    GoMessage go = {};
    go.attempt = loaded_.attempt;
    go.start_step = sealed_ ? sealed_->step : 0;
    if (loaded_.code == 0 && !hold_go) Send(go, MessageType::kGo);
  } else if (type == MessageType::kLayout) {
    if (!hold_layout) Prepare(Parse<LayoutMessage>(packet), packet.fds.at(0).get());
  } else if (type == MessageType::kResume) {
    ResumeRefusedMessage refused = {};
    refused.code = 5;
    if (refuse_with != 0) return Refuse(type, refuse_with, "not now");
    if (refuse_resume) return Send(refused, MessageType::kResumeRefused);
    EXPECT_EQ(Parse<ResumeMessage>(packet).bell_id, ready_.bell_id);
    bell_fd_ = std::move(packet.fds.at(0));
    SendReady();
  } else if (type == MessageType::kCopier) {
    AnswerCopier(Parse<CopierMessage>(packet));
  } else if (type == MessageType::kDrop) {
    drop_ = Parse<CaptureMessage>(packet);
  } else if (type == MessageType::kRescue) {
    rescue_ = Parse<RescueMessage>(packet);
  }
}

void FakeAgent::AnswerCopier(const CopierMessage& message) {
  CopierReplyMessage reply = {};
  memcpy(reply.gpu, message.gpu, sizeof reply.gpu);
  UniqueFd socket;
  UniqueFd process;
  if (start_copier && start_copier(&socket, &process)) {
    return Send(reply, MessageType::kCopierReply, {socket.get(), process.get()});
  }
  reply.code = 1;
  snprintf(reply.sentence, sizeof reply.sentence, "no copiers on this node");
  Send(reply, MessageType::kCopierReply);
}

void FakeAgent::Load() {
  LoadMessage load = {};
  load.attempt = attempt_;
  if (!sealed_) return Send(load, MessageType::kLoad);
  load.snapshot_attempt = sealed_->attempt;
  load.snapshot_step = sealed_->step;
  load.source = static_cast<uint32_t>(Source::kRegion);
  load.verified = offer_verified ? 1 : 0;
  load.slot = sealed_slot_;
  load.layout = ready_.layout;
  load.slot_bytes = ready_.slot_bytes;
  load.skipped_count = 1;
  load.skipped[0] = {1, 999, 4, 0};
  for (const SkippedMessage& said : said_skipped_) Send(said, MessageType::kSkipped);
  Send(load, MessageType::kLoad, {slot_fds_[sealed_slot_].get(), ctl_fd_.get()});
}

void FakeAgent::SaySkipped(uint64_t attempt, uint64_t step, const std::string& why) {
  std::lock_guard lock(mutex_);
  SkippedMessage& said = said_skipped_.emplace_back();
  said.attempt = attempt;
  said.step = {1, step, 4, 0};
  memcpy(said.why, why.data(), std::min(why.size(), sizeof said.why));
}

void FakeAgent::AskForPatience(uint64_t patience_ms) {
  std::lock_guard lock(mutex_);
  PatienceMessage patience = {};
  patience.ticket = ticket_;
  patience.patience_ms = patience_ms;
  Send(patience, MessageType::kPatience);
}

void FakeAgent::OfferAgain() {
  std::lock_guard lock(mutex_);
  attempt_ += 1;
  Load();
}

void FakeAgent::SendNews(const NewsMessage& news) {
  std::lock_guard lock(mutex_);
  Send(news, MessageType::kNews);
}

void FakeAgent::SendError(MessageType answers, uint32_t code, const std::string& sentence) {
  std::lock_guard lock(mutex_);
  Refuse(answers, code, sentence);
}

void FakeAgent::Refuse(MessageType answers, uint32_t code, const std::string& sentence) {
  ErrorMessage message = {};
  message.code = code;
  message.answers = static_cast<uint32_t>(answers);
  memcpy(message.sentence, sentence.data(), sentence.size());
  Send(message, MessageType::kError);
}

int FakeAgent::Count(MessageType type) {
  std::lock_guard lock(mutex_);
  return counts_[static_cast<size_t>(type)];
}

void FakeAgent::WaitForCount(MessageType type, int count) {
  while (Count(type) < count) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

JoinMessage FakeAgent::last_join() {
  std::lock_guard lock(mutex_);
  return join_;
}

LoadedMessage FakeAgent::last_loaded() {
  std::lock_guard lock(mutex_);
  return loaded_;
}

CaptureMessage FakeAgent::last_drop() {
  std::lock_guard lock(mutex_);
  return drop_;
}

RescueMessage FakeAgent::last_rescue() {
  std::lock_guard lock(mutex_);
  return rescue_;
}

}  // namespace ckptd
