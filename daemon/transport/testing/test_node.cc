#include "daemon/transport/testing/test_node.h"

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/clock.h"
#include "daemon/base/errors.h"
#include "daemon/base/ids.h"
#include "daemon/os/posix_files.h"

namespace ckptd::transport {
namespace {

template <typename Value>
Value Must(absl::StatusOr<Value> value) {
  if (value.ok()) return *std::move(value);
  std::cerr << value.status() << "\n";
  std::abort();
}

GrpcLinksOptions OptionsOf(const TestNode::Options& options) {
  GrpcLinksOptions out;
  out.cluster = kTestCluster;
  out.agent = options.name + "-agent";
  out.incarnation = RandomId();
  out.listen = absl::StrCat(options.host, ":", options.port);
  out.hello_patience = options.hello_patience;
  out.first_pause = std::chrono::milliseconds(50);
  out.longest_pause = std::chrono::milliseconds(400);
  out.longest_connection = options.longest_connection;
  out.copy_host = options.copy_host;
  if (options.bulk != nullptr) out.bulks = {options.bulk};
  out.measures = options.measures;
  out.moves_out = options.moves_out;
  out.moves_in = options.moves_in;
  return out;
}

}  // namespace

LinkMessage StateOf(const std::string& job, const std::string& coordinator, uint64_t floor, size_t padding) {
  auto state = std::make_shared<v1::State>();
  state->set_job(job);
  state->set_coordinator(coordinator);
  state->set_floor(floor);
  if (padding != 0) state->add_refusals()->set_message(std::string(padding, 'x'));
  return LinkMessage(std::move(state));
}

TestNode::TestNode(Options options)
    : options_(std::move(options)),
      loop_(Must(Loop::Create(SystemClock(), 1024))),
      self_{options_.name, options_.generation, absl::OkStatus()} {
  GrpcLinksOptions links = OptionsOf(options_);
  links.self = [this] { return self_; };
  const auto admit = [this](const std::string& name, uint64_t generation) { return Admit(name, generation); };
  links.admit = options_.admit ? options_.admit : admit;
  links.would_admit = options_.would_admit ? options_.would_admit : admit;
  links_ = Must(GrpcLinks::Start(*loop_, *this, Must(Credentials::Create(PosixFiles(), options_.tls, kTestCluster)),
                                 std::move(links)));
  thread_.emplace("node", [this] { (void)loop_->Run(); });
}

TestNode::~TestNode() {
  LetGo();
  Do([this] { links_.reset(); });
  loop_->Stop();
  thread_->Join();
}

absl::Status TestNode::Admit(const std::string& name, uint64_t generation) const {
  const auto least = fence_.find(name);
  if (least == fence_.end() || generation >= least->second) return absl::OkStatus();
  return Error(ErrorCode::FENCED, absl::StrCat("node ", name, ", generation ", generation, ": a later one is here"));
}

std::string TestNode::address() const { return absl::StrCat(options_.host, ":", links_->port()); }

void TestNode::Do(const std::function<void()>& work) {
  bool done = false;
  const bool posted = loop_->Post([&] {
    work();
    MutexLock lock(mutex_);
    done = true;
    changed_.NotifyAll();
  });
  if (!posted) std::abort();
  MutexLock lock(mutex_);
  while (!done) changed_.Wait(mutex_);
}

void TestNode::SetPeers(std::vector<PeerNode> peers, std::map<std::string, uint64_t> fence) {
  Do([&] {
    fence_ = std::move(fence);
    links_->SetPeers(peers);
  });
}

void TestNode::SetSelf(uint64_t generation, const absl::Status& status) {
  Do([&] {
    self_.generation = generation;
    self_.status = status;
  });
}

absl::Status TestNode::Send(const std::string& peer, const LinkMessage& message) {
  absl::Status sent;
  Do([&] { sent = links_->Send(peer, message); });
  return sent;
}

absl::Status TestNode::SendFloor(const std::string& peer, const std::string& job, uint64_t floor, size_t padding) {
  return Send(peer, StateOf(job, agent(), floor, padding));
}

PeerCondition TestNode::Condition(const std::string& peer) {
  PeerCondition found;
  Do([&] {
    for (PeerCondition& condition : links_->Conditions()) {
      if (condition.name == peer) found = std::move(condition);
    }
  });
  return found;
}

bool TestNode::UntilCondition(const std::string& peer, const std::function<bool(const PeerCondition&)>& fits,
                              Nanos patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (!fits(Condition(peer))) {
    const auto now = std::chrono::steady_clock::now();
    if (now >= deadline) return false;
    MutexLock lock(mutex_);
    (void)changed_.WaitUntil(mutex_, std::min(deadline, now + std::chrono::milliseconds(20)));
  }
  return true;
}

bool TestNode::UntilConnected(const std::string& peer) {
  return UntilCondition(peer, [](const PeerCondition& condition) { return condition.connected; });
}

std::vector<std::string> TestNode::Received() {
  MutexLock lock(mutex_);
  return received_;
}

bool TestNode::UntilReceived(const std::string& message, Nanos patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  MutexLock lock(mutex_);
  while (std::find(received_.begin(), received_.end(), message) == received_.end()) {
    if (!changed_.WaitUntil(mutex_, deadline)) return false;
  }
  return true;
}

void TestNode::Hold() {
  MutexLock lock(mutex_);
  held_ = true;
  const bool posted = loop_->Post([this] {
    MutexLock inner(mutex_);
    while (held_) changed_.Wait(mutex_);
  });
  if (!posted) std::abort();
}

void TestNode::LetGo() {
  MutexLock lock(mutex_);
  held_ = false;
  changed_.NotifyAll();
}

void TestNode::Received(const std::string& peer, const LinkMessage& message) {
  MutexLock lock(mutex_);
  received_.push_back(absl::StrCat(peer, " ", message.job(), " ",
                                   message.state() ? message.state()->floor() : message.report()->seq()));
  changed_.NotifyAll();
}

}  // namespace ckptd::transport
