#include "engine.h"

#include <sys/prctl.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace parallax {
namespace {

constexpr int kHeaderTag = 1;
constexpr int kFirstPayloadTag = 2;
constexpr int kPayloadTags = 20000;  // MPI guarantees tags up to 32767
constexpr auto kShortestPause = std::chrono::microseconds(10);
constexpr auto kLongestPause = std::chrono::microseconds(100);
// After this time without progress, pauses may be longer. They then listen to all ranks. Pauses still end, because MPI
// rings no bell between the parts of a message.
constexpr auto kLongWait = std::chrono::milliseconds(1);
constexpr auto kLongestPauseOfLongWait = std::chrono::microseconds(10000);
// The same, if some ranks cannot ring.
constexpr auto kLongWaitWithoutBells = std::chrono::milliseconds(20);
constexpr auto kLongestPauseWithoutBells = std::chrono::microseconds(2000);
// How often a rank without exchanges looks for messages. Other ranks may wait for an exchange that it has left out.
constexpr auto kIdlePause = std::chrono::milliseconds(100);
constexpr auto kAwaitedAfter = std::chrono::seconds(5);  // train.stall_timeout_secs is at least 10 s
constexpr auto kReportAfter = std::chrono::seconds(30);

}  // namespace

Engine& Engine::Instance() {
  static Engine* engine = new Engine();  // is never destroyed, because its thread may outlive static objects
  return *engine;
}

std::string Engine::Join() {
  if (is_joined_) return "";
  int is_initialized = 0, provided = MPI_THREAD_SINGLE;
  MPI_Initialized(&is_initialized);
  if (!is_initialized) {
    // The user's own values remain. Otherwise the first 64 KB of each piece leave before the receiver asks for it.
    setenv("OMPI_MCA_btl_tcp_rndv_eager_limit", "4096", /*overwrite=*/0);
    // Otherwise a header with a payload of over 4 KB goes to a rank of this host in parts, which wait for both threads.
    setenv("OMPI_MCA_btl_sm_eager_limit", std::to_string(kInlineBytes + 4096).c_str(), /*overwrite=*/0);
    if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided) != MPI_SUCCESS) return "MPI does not start";
    must_finalize_ = true;
  } else {
    MPI_Query_thread(&provided);
  }
  has_threads_ = provided == MPI_THREAD_MULTIPLE;
  if (!has_threads_) return "MPI does not provide MPI_THREAD_MULTIPLE";
  MPI_Comm_dup(MPI_COMM_WORLD, &comm_);
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  MPI_Comm_rank(comm_, &rank_);
  MPI_Comm_size(comm_, &size_);
  MPI_Comm on_host;
  MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &on_host);
  MPI_Comm_rank(on_host, &local_rank_);
  const bool has_bell = bells_.Connect(comm_, on_host);
  MPI_Comm_free(&on_host);
  if (!has_bell) return "this process cannot open a pipe: too many files are open";
  transfers_.Connect(comm_, size_);
  next_tag_.assign(size_, 0);
  has_left_.assign(size_, false);
  thread_ = std::thread([this] { Run(); });
  is_joined_ = true;
  return "";
}

void Engine::Leave() {
  if (!is_joined_) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    leaves_ = true;
  }
  bells_.RingOwn();
  thread_.join();
  is_joined_ = false;
  if (must_finalize_) MPI_Finalize();
}

void Engine::Post(std::shared_ptr<Exchange> exchange) {
  for (int other = 0; other < size_; ++other) {
    if (other != rank_) exchange->missing.insert(other);
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    commands_.push_back({std::move(exchange), "", Identity()});
  }
  bells_.RingOwn();
}

void Engine::EndRun(const Identity& identity) {
  std::lock_guard<std::mutex> lock(mutex_);
  // Wakes nobody, because all exchanges of a run that succeeds have ended on all ranks.
  commands_.push_back({nullptr, "", identity});
}

void Engine::Cancel(const std::shared_ptr<Exchange>& exchange, const std::string& why) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    commands_.push_back({exchange, why, Identity()});
  }
  bells_.RingOwn();
}

// --- The thread ------------------------------------------------------------------------------------------------------

void Engine::Run() {
  prctl(PR_SET_NAME, "exchanges");
  prctl(PR_SET_TIMERSLACK, 1000);  // ns; 50 us by default, which is longer than most pauses
  auto pause = kShortestPause;
  auto last_progress = Clock::now();
  auto next_report = Clock::now() + std::chrono::seconds(1);
  while (true) {
    const uint32_t rings = bells_.Rings();
    const bool is_asked = TakeCommands();
    bool has_come = TakeMessages();
    has_come |= transfers_.Test();
    bells_.RingThoseDue();
    CountWaiting();
    const bool is_busy = !exchanges_.empty() || transfers_.Count() > 0;
    if (is_busy && Clock::now() > next_report) {
      ReportWaiting();
      next_report = Clock::now() + std::chrono::seconds(1);
    }
    if (has_come) bells_.Came();
    if (is_asked || has_come) {
      last_progress = Clock::now();
      pause = kShortestPause;
      continue;
    }
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!commands_.empty()) continue;
      if (leaves_) break;
      if (!is_busy) awaited_ = Awaited();
    }
    sleeps_ += 1;
    if (!is_busy) {
      bells_.SleepUnlessRung(rings, kIdlePause, Listens::kToThisRank);
      continue;
    }
    const Listens listens = pause > kLongestPause ? Listens::kToAllRanks : Listens::kToHost;
    if (bells_.SleepUnlessRung(rings, pause, listens)) {
      last_progress = Clock::now();
      pause = kShortestPause;
      continue;
    }
    pause = std::min(pause * 2, LongestPause(Clock::now() - last_progress));
    if (pause > kLongestPause) bells_.ForgetSockets();  // what has come so far is taken before the pause
  }
  FailAll("rank " + std::to_string(rank_) + " has ended");
  TellOthers(Identity(), Kind::kLeaving, "");
  // The messages that say so are short. What no rank takes any more stays behind.
  const auto end = Clock::now() + std::chrono::milliseconds(200);
  while (transfers_.Count() > 0 && Clock::now() < end) {
    transfers_.Test();
    bells_.RingThoseDue();
    std::this_thread::sleep_for(kShortestPause);
  }
}

// Returns how long the thread may sleep although something is under way. `wait` is the time without progress.
std::chrono::microseconds Engine::LongestPause(Clock::duration wait) const {
  if (bells_.AllRanksRing()) return wait > kLongWait ? kLongestPauseOfLongWait : kLongestPause;
  return wait > kLongWaitWithoutBells ? kLongestPauseWithoutBells : kLongestPause;
}

void Engine::CountWaiting() {
  transfers_under_way_ = transfers_.Count();
  early_messages_ = early_.Count();
}

bool Engine::TakeCommands() {
  std::deque<Command> commands;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    commands.swap(commands_);
  }
  for (Command& command : commands) {
    if (command.exchange == nullptr) {
      RefuseEarly(command.ended);
    } else if (command.cancelled.empty()) {
      Begin(command.exchange);
    } else {
      Fail(command.exchange, command.cancelled, /*tell_others=*/true);
    }
  }
  return !commands.empty();
}

Engine::RunsOfStream& Engine::RunsOf(const Identity& identity) {
  RunsOfStream& runs = runs_[{identity.epoch, identity.stream}];
  if (runs.newest.empty()) runs.newest.assign(size_, 0);
  return runs;
}

void Engine::Begin(const std::shared_ptr<Exchange>& exchange) {
  if (exchange->is_finished) return;  // the run was cancelled between the registration of the callback and `Post`
  const Identity& identity = exchange->identity();
  std::vector<uint64_t>& newest = RunsOf(identity).newest;
  newest[rank_] = std::max(newest[rank_], identity.run);
  const auto is_left = [&identity](int, const Header& header) { return IsOfEarlierRun(header.identity, identity); };
  for (const auto& [from, message] : early_.TakeIf(is_left)) Drain(from, message.header);
  exchange->urgency.order = begun_exchanges_++;
  exchanges_[identity] = exchange;
  for (const int other : exchange->missing) {
    if (has_left_[other]) {
      Fail(exchange, "rank " + std::to_string(other) + " has ended", /*tell_others=*/true);
      return;
    }
  }
  exchange->Start(*this);
  for (auto& [from, message] : early_.Take(identity)) DeliverTo(exchange, from, std::move(message));
  FinishIfDone(exchange);
  for (int other = 0; other < size_; ++other) {
    if (newest[other] > identity.run) DropOlder(other, identity);
  }
}

bool Engine::TakeMessages() {
  bool is_progress = false;
  while (true) {
    int is_there = 0;
    MPI_Message message;
    MPI_Status status;
    if (!transfers_.Check(MPI_Improbe(MPI_ANY_SOURCE, kHeaderTag, comm_, &is_there, &message, &status), "MPI_Improbe")) break;
    if (!is_there) break;
    int bytes = 0;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    std::vector<char> data(bytes);
    if (!transfers_.Check(MPI_Mrecv(data.data(), bytes, MPI_BYTE, &message, &status), "MPI_Mrecv")) break;
    Received received;
    std::memcpy(&received.header, data.data(), sizeof(Header));
    received.inline_payload.assign(data.begin() + sizeof(Header), data.end());
    Deliver(status.MPI_SOURCE, std::move(received));
    is_progress = true;
  }
  return is_progress;
}

void Engine::Deliver(int from, Received message) {
  const Identity identity = message.header.identity;
  if (message.header.content.kind == Kind::kLeaving) {
    has_left_[from] = true;
    std::vector<std::shared_ptr<Exchange>> waiting;
    for (const auto& entry : exchanges_) {
      if (entry.second->missing.count(from)) waiting.push_back(entry.second);
    }
    for (const auto& exchange : waiting) Fail(exchange, "rank " + std::to_string(from) + " has ended", true);
    return;
  }
  RunsOfStream& runs = RunsOf(identity);
  if (identity.run > runs.newest[from]) {
    runs.newest[from] = identity.run;
    DropOlder(from, identity);
    DropEarly(from, identity);
  }
  const auto found = exchanges_.find(identity);
  if (found != exchanges_.end()) {
    DeliverTo(found->second, from, std::move(message));
  } else if (identity.run < runs.newest[rank_]) {
    Drain(from, message.header);  // it comes late: the exchange has ended here, and runs follow each other
  } else if (identity.run == runs.ended) {
    Refuse(from, message.header);
  } else {
    early_.Keep(from, std::move(message));
  }
}

// Fails the exchanges for which a rank waits in vain: `from` has begun a later run of the session.
void Engine::DropOlder(int from, const Identity& identity) {
  const uint64_t newest = RunsOf(identity).newest[from];
  std::vector<std::shared_ptr<Exchange>> waiting;
  for (const auto& [other, exchange] : exchanges_) {
    const bool is_of_stream = other.epoch == identity.epoch && other.stream == identity.stream;
    if (is_of_stream && other.run < newest && exchange->missing.count(from)) waiting.push_back(exchange);
  }
  for (const auto& exchange : waiting) {
    Fail(exchange, "rank " + std::to_string(from) + " has ended its session.run without it", true);
  }
}

// Drops what `from` has sent for runs that it has left: no exchange of them can succeed. Why they ended is kept for the
// next run of this rank.
void Engine::DropEarly(int from, const Identity& identity) {
  const uint64_t next_run = RunsOf(identity).newest[rank_] + 1;
  const auto is_dropped = [&identity, from, next_run](int sender, const Header& header) {
    if (sender != from || !IsOfEarlierRun(header.identity, identity)) return false;
    const bool is_needed = header.content.kind == Kind::kAbort && header.identity.run <= next_run;
    return !is_needed;
  };
  for (const auto& [sender, message] : early_.TakeIf(is_dropped)) Drain(sender, message.header);
}

void Engine::DeliverTo(std::shared_ptr<Exchange> exchange, int from, Received message) {
  if (exchange->is_finished) {
    Drain(from, message.header);
    return;
  }
  if (message.header.content.kind == Kind::kAbort) {
    Fail(exchange, std::string(message.inline_payload.begin(), message.inline_payload.end()), false);
    return;
  }
  exchange->missing.erase(from);
  const std::string other = exchange->Explain(message.header.content);
  if (!other.empty()) {
    Drain(from, message.header);
    Fail(exchange,
         "rank " + std::to_string(rank_) + " has " + Described(exchange->content()) + ", but rank " +
             std::to_string(from) + " has " + other,
         true);
    return;
  }
  exchange->Take(*this, from, std::move(message));
  FinishIfDone(exchange);
}

void Engine::Send(const std::shared_ptr<Exchange>& exchange, int to, Content content, const void* data, int64_t bytes,
                  Held held) {
  Header header;
  header.identity = exchange->identity();
  header.content = content;
  header.payload_bytes = bytes;
  const bool is_inline = bytes <= kInlineBytes;
  if (!is_inline) {
    header.payload_tag = kFirstPayloadTag + next_tag_[to];
    next_tag_[to] = (next_tag_[to] + 1) % kPayloadTags;
  }
  std::vector<char> message(sizeof(Header) + (is_inline ? bytes : 0));
  std::memcpy(message.data(), &header, sizeof(Header));
  if (is_inline && bytes > 0) std::memcpy(message.data() + sizeof(Header), data, bytes);
  transfers_.SendMessage(to, kHeaderTag, std::move(message));
  if (is_inline) return;
  transfers_.SendPayload(to, header.payload_tag, static_cast<const char*>(data), bytes, std::move(held));
}

void Engine::Receive(const std::shared_ptr<Exchange>& exchange, int from, const Received& message, void* data,
                     Held held, std::function<void(int64_t)> on_arrived) {
  const Header& header = message.header;
  if (header.payload_tag == 0) {
    if (!message.inline_payload.empty()) {
      std::memcpy(data, message.inline_payload.data(), message.inline_payload.size());
    }
    on_arrived(header.payload_bytes);
    return;
  }
  Incoming incoming;
  incoming.from = from;
  incoming.tag = header.payload_tag;
  incoming.to = static_cast<char*>(data);
  incoming.bytes = header.payload_bytes;
  incoming.urgency = exchange->urgency;
  incoming.held = std::move(held);
  incoming.on_arrived = [this, exchange, on_arrived = std::move(on_arrived)](int64_t arrived_bytes) {
    if (exchange->is_finished) return;
    on_arrived(arrived_bytes);
    FinishIfDone(exchange);
  };
  transfers_.Receive(std::move(incoming));
}

// Takes a payload that nobody needs, so that its sender's request ends.
void Engine::Drain(int from, const Header& header) {
  if (header.payload_tag == 0) return;
  const auto memory = std::make_shared<std::vector<char>>(header.payload_bytes);
  Incoming incoming;
  incoming.from = from;
  incoming.tag = header.payload_tag;
  incoming.to = memory->data();
  incoming.bytes = header.payload_bytes;
  incoming.held = memory;
  transfers_.Receive(std::move(incoming));
}

// Answers the ranks that wait for an exchange which a run of this rank has left out: it failed before, or was cancelled.
// Otherwise these ranks would wait until this rank begins its next run.
void Engine::RefuseEarly(const Identity& ended) {
  uint64_t& newest = RunsOf(ended).ended;
  newest = std::max(newest, ended.run);
  const auto is_of_run = [&ended](int, const Header& header) { return IsOfSameRun(header.identity, ended); };
  for (const auto& [from, message] : early_.TakeIf(is_of_run)) Refuse(from, message.header);
}

void Engine::Refuse(int from, const Header& header) {
  Drain(from, header);
  if (header.content.kind == Kind::kAbort || has_left_[from]) return;
  Tell(from, header.identity, Kind::kAbort, WhyLeftOut(header.identity));
}

// If another rank has ended the run of this one, that rank is named, and not this one.
std::string Engine::WhyLeftOut(const Identity& identity) {
  const FailedRun& failed = RunsOf(identity).failed;
  if (failed.run == identity.run) return failed.why;
  return "rank " + std::to_string(rank_) + " has ended its session.run without it";
}

void Engine::Tell(int other, const Identity& identity, Kind kind, const std::string& why) {
  Header header;
  header.identity = identity;
  header.content.kind = kind;
  header.payload_bytes = std::min<int64_t>(why.size(), kInlineBytes);
  std::vector<char> message(sizeof(Header) + header.payload_bytes);
  std::memcpy(message.data(), &header, sizeof(Header));
  std::memcpy(message.data() + sizeof(Header), why.data(), header.payload_bytes);
  transfers_.SendMessage(other, kHeaderTag, std::move(message));
}

void Engine::TellOthers(const Identity& identity, Kind kind, const std::string& why) {
  for (int other = 0; other < size_; ++other) {
    if (other != rank_ && !has_left_[other]) Tell(other, identity, kind, why);
  }
}

void Engine::FinishIfDone(std::shared_ptr<Exchange> exchange) {
  if (exchange->is_finished || !exchange->HasResults()) return;
  exchange->is_finished = true;
  exchanges_.erase(exchange->identity());
  exchange->Finish("");
}

void Engine::Fail(std::shared_ptr<Exchange> exchange, const std::string& why, bool tell_others) {
  if (exchange->is_finished) return;
  exchange->is_finished = true;  // its transfers end later, and keep their memory alive until then
  const Identity& identity = exchange->identity();
  exchanges_.erase(identity);
  FailedRun& failed = RunsOf(identity).failed;
  if (identity.run > failed.run) failed = {identity.run, why};  // the first reason is the cause
  if (tell_others) TellOthers(identity, Kind::kAbort, why);
  for (const auto& [from, header] : exchange->Untaken()) Drain(from, header);
  exchange->Finish(why);
}

void Engine::FailAll(const std::string& why) {
  auto exchanges = exchanges_;
  for (const auto& entry : exchanges) {
    const std::string unheard = entry.second->Unheard();
    Fail(entry.second, unheard.empty() ? why : why + "; " + unheard, /*tell_others=*/true);
  }
}

Awaited Engine::AwaitedNow() {
  std::lock_guard<std::mutex> lock(mutex_);
  return awaited_;
}

void Engine::ReportWaiting() {
  Awaited awaited;
  Clock::time_point first = Clock::time_point::max();
  for (const auto& entry : exchanges_) {
    Exchange& exchange = *entry.second;
    const auto waited = Clock::now() - exchange.posted;
    if (waited >= kAwaitedAfter && !exchange.missing.empty()) {
      awaited.ranks.insert(exchange.missing.begin(), exchange.missing.end());
      if (exchange.posted < first) awaited.exchange = exchange.name();
      first = std::min(first, exchange.posted);
    }
    if (exchange.is_told || waited < kReportAfter) continue;
    exchange.is_told = true;
    const std::string unheard = exchange.Unheard();
    const std::string why = unheard.empty() ? "all ranks have begun it, but not all has come" : unheard;
    // Not by TensorFlow's logger, which TF_CPP_MIN_LOG_LEVEL silences.
    std::fprintf(stderr, "rank %d has waited 30 s for %s «%s»: %s.\n", rank_, NameOf(exchange.content().kind),
                 exchange.name().c_str(), why.c_str());
  }
  std::lock_guard<std::mutex> lock(mutex_);
  awaited_ = std::move(awaited);
}

}  // namespace parallax
