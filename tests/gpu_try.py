import copy, time, traceback
import torch, torch.nn as nn, torch.nn.functional as F
try:
    from advisor.step.tuning import Tuning
except ImportError:
    from advisor.runtime.tuning import Tuning
dev="cuda"
def data(n=20, b=16, last=None):
    g=torch.Generator().manual_seed(1)
    size=lambda i: last if last and i%5==4 else b
    return [(torch.randn(size(i),32,generator=g).to(dev),torch.randint(0,4,(size(i),),generator=g).to(dev)) for i in range(n)]
def net(p=0.0):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32,64),nn.BatchNorm1d(64),nn.ReLU(),nn.Dropout(p),nn.Linear(64,64),nn.GELU(),nn.Linear(64,4)).to(dev)
KL=0.1
def run(kind, settings, opt, hooks=None, loss=None, clip=None, p=0.0, last=None, n=24):
    global KL
    hooks=hooks or {}; res=[]
    try:
        for tuned in (False, True):
            KL=0.1; torch.manual_seed(0)
            m=net(p); o=opt(m.parameters()); L=loss or (lambda out,target: F.cross_entropy(out,target)); st={}
            if 'before' in hooks: hooks['before'](m,o,st)
            if tuned:
                t=Tuning(settings); m,o=t.prepare(m,o); step=t.train_step(m,o,L,clip_grad=clip)
            else:
                m.train(); half=settings.get("precision.autocast"); sc=torch.amp.GradScaler("cuda") if half=="float16" else None
                def step(b):
                    o.zero_grad()
                    with torch.autocast("cuda",dtype=getattr(torch,half or "bfloat16"),enabled=bool(half)):
                        l=L(m(b[0]),b[1])
                    (sc.scale(l) if sc else l).backward()
                    if sc and clip: sc.unscale_(o)
                    if clip: torch.nn.utils.clip_grad_norm_(m.parameters(),clip)
                    if sc: sc.step(o); sc.update()
                    else: o.step()
                    return l.detach()
            if 'after' in hooks: hooks['after'](m,o,st)
            torch.manual_seed(5); ls=[]
            for i,b in enumerate(data(n,last=last)):
                if 'each' in hooks: hooks['each'](i,m,o,st)
                ls.append(float(step(b)))
            info=tuple(getattr(step,x,None) for x in ('captured','refusal','replays','reason'))
            res.append((ls,[q.detach().clone() for q in m.parameters()],info))
        d=max(abs(a-b)/(abs(a)+1e-6) for a,b in zip(res[0][0],res[1][0]))
        w=max(float((a-b).abs().max()) for a,b in zip(res[0][1],res[1][1]))
        print(f"{kind:16s} loss {d:.1e} weights {w:.1e} {res[1][2]}", flush=True)
    except Exception:
        print(kind, "FAILED"); traceback.print_exc(limit=-4)
adam=lambda ps: torch.optim.Adam(ps,lr=1e-3)
sgd=lambda ps: torch.optim.SGD(ps,lr=1e-2,momentum=0.9)
G={"step.cuda_graph":True}
def kl(i,m,o,st):
    global KL
    if i==12: KL=0.5
def drop(i,m,o,st):
    if i==12: m[3].p=0.0
def freeze(i,m,o,st):
    if i==10: [q.requires_grad_(False) for q in m[0].parameters()]
    if i==18: [q.requires_grad_(True) for q in m[0].parameters()]
def ev(i,m,o,st):
    if i%6==5:
        m.eval()
        with torch.no_grad(): m(torch.randn(4,32,device=dev,generator=torch.Generator(dev).manual_seed(2)))
        m.train()
def mk(cls,**k):
    def f(m,o,st): st['s']=cls(o,**k)
    return f
def sched(i,m,o,st):
    if i: st['s'].step()
def ck(i,m,o,st):
    if i==6: st['c']=(copy.deepcopy(m.state_dict()),copy.deepcopy(o.state_dict()))
    if i==14: m.load_state_dict(st['c'][0]); o.load_state_dict(copy.deepcopy(st['c'][1]))
def byhand(i,m,o,st):
    for g in o.param_groups: g['lr']=1e-3*(1+i)
def emah(i,m,o,st):
    if i==0: st['e']=copy.deepcopy(m)
    else:
        with torch.no_grad():
            for a,b in zip(st['e'].parameters(),m.parameters()): a.lerp_(b,0.1)
C=torch.optim.lr_scheduler
run("adam",G,adam); run("sgd",G,sgd); run("plain adam",{},adam)
run("fused+graph",{**G,"optimizer.implementation":"fused"},adam)
run("sched before",G,adam,{'before':mk(C.StepLR,step_size=3,gamma=0.5),'each':sched})
run("sched after",G,adam,{'after':mk(C.StepLR,step_size=3,gamma=0.5),'each':sched})
run("onecycle",G,adam,{'after':mk(C.OneCycleLR,max_lr=1e-2,total_steps=40),'each':sched})
run("by hand",G,sgd,{'each':byhand})
run("kl global",G,adam,{'each':kl},loss=lambda out,target: F.cross_entropy(out,target)+KL*out.square().mean())
run("dropout changed",G,adam,{'each':drop},p=0.5)
run("freeze",G,adam,{'each':freeze})
run("eval between",G,adam,{'each':ev})
run("checkpoint",G,adam,{'each':ck})
run("ema",G,adam,{'each':emah})
run("small last",G,adam,last=7,n=40)
run("fp16+clip",{**G,"precision.autocast":"float16"},adam,clip=1.0)
run("bf16+clip",{**G,"precision.autocast":"bfloat16"},adam,clip=1.0)
run("compile+graph",{**G,"compile.mode":"default","precision.autocast":"bfloat16"},adam)
run("with_loss+graph",{**G,"compile.scope":"with_loss","precision.autocast":"bfloat16"},adam)
run("item in loss",G,adam,loss=lambda out,target: F.cross_entropy(out,target)*(1.0 if out.sum().item()>-1e9 else 2.0))
def gan(tuned):
    torch.manual_seed(0)
    g=nn.Sequential(nn.Linear(16,64),nn.ReLU(),nn.Linear(64,32)).to(dev); d=nn.Sequential(nn.Linear(32,64),nn.ReLU(),nn.Linear(64,1)).to(dev)
    og=torch.optim.Adam(g.parameters(),lr=1e-3); od=torch.optim.Adam(d.parameters(),lr=1e-3)
    z=torch.randn(64,16,device=dev)
    def step(x):
        od.zero_grad(); ld=F.softplus(d(g(z).detach())).mean()+F.softplus(-d(x)).mean(); ld.backward(); od.step()
        og.zero_grad(); lg=F.softplus(-d(g(z))).mean(); lg.backward(); og.step()
        return ld, lg
    f=step
    if tuned:
        t=Tuning(G); g=t.prepare(g); f=t.own_step(step,g)
    out=[]; gen=torch.Generator().manual_seed(3)
    for i in range(24):
        a,b=f(torch.randn(64,32,generator=gen).to(dev)); out.append(float(a)+float(b))
    return out,f
try:
  a,_=gan(False); b,f=gan(True); print("gan", max(abs(x-y) for x,y in zip(a,b)), [getattr(f,q,None) for q in ('captured','refusal','replays')])
  m=net().eval(); t=Tuning(G); s=t.infer(m); xs=[x for x,_ in data(12)]
  print("infer", max(float((s(x)-net().eval()(x)).abs().max()) for x in xs), s.captured)
  def timed(name, model, loss, b, settings, n):
    torch.manual_seed(0); o=torch.optim.AdamW(model.parameters())
    t=Tuning(settings); model,o=t.prepare(model,o); s=t.train_step(model,o,loss)
    for _ in range(50): s(b)
    torch.cuda.synchronize(); t0=time.perf_counter()
    for _ in range(n): s(b)
    h=time.perf_counter()-t0; torch.cuda.synchronize(); print(name,"us/step %.1f host %.1f" % ((time.perf_counter()-t0)/n*1e6, h/n*1e6), getattr(s,'captured',None), getattr(s,'refusal',None), flush=True)
  F_={**G,"optimizer.implementation":"fused"}
  for _ in range(2):
    timed("mlp12",nn.Sequential(*[q for _ in range(12) for q in (nn.Linear(256,256),nn.ReLU())],nn.Linear(256,10)).to(dev),nn.CrossEntropyLoss(),(torch.randn(64,256,device=dev),torch.randint(0,10,(64,),device=dev)),F_,900)
    timed("transformer",nn.TransformerEncoder(nn.TransformerEncoderLayer(128,4,256,batch_first=True),6).to(dev),lambda output,target: (output.float()-target).square().mean(),(torch.randn(16,64,128,device=dev),torch.randn(16,64,128,device=dev)),{**F_,"precision.autocast":"bfloat16"},400)
except Exception:
  traceback.print_exc()
