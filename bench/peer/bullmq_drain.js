// Preloads COUNT jobs of 100 bytes, runs them through one worker, prints one line of JSON.
const fs = require('fs');
const { Queue, Worker } = require('bullmq');
const IORedis = require('ioredis');
const [path, count, runs] = [process.argv[2], Number(process.argv[3]), process.argv[4]];
const connect = () => new IORedis({ path, maxRetriesPerRequest: null });
const out = fs.openSync(runs, 'a');
const CALL = 1000;

(async () => {
  const queue = new Queue('bench', { connection: connect(), defaultJobOptions: { removeOnComplete: true } });
  for (let first = 0; first < count; first += CALL) {
    const numbers = Array.from({ length: Math.min(CALL, count - first) }, (_, n) => first + n);
    await queue.addBulk(numbers.map((n) => ({ name: 'noop', data: { n, pad: 'x'.repeat(80) } })));
  }
  let done = 0;
  let finish;
  const finished = new Promise((resolve) => { finish = resolve; });
  const line = Buffer.alloc(12);
  const cpu = process.cpuUsage();
  const begun = process.hrtime.bigint();
  const worker = new Worker('bench', async (job) => {
    line.writeUInt32LE(job.data.n, 0);
    line.writeBigUInt64LE(process.hrtime.bigint(), 4);
    fs.writeSync(out, line);
  }, { connection: connect(), concurrency: 300 });
  worker.on('completed', () => { done += 1; if (done === count) finish(); });
  await finished;
  const seconds = Number(process.hrtime.bigint() - begun) / 1e9;
  const spent = process.cpuUsage(cpu);
  console.log(JSON.stringify({ seconds, cpu_s: (spent.user + spent.system) / 1e6 }));
  process.exit(0);
})();
