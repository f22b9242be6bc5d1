// The site's search is a Worker, which browsers refuse to pages that are opened from a folder (file:). There it runs in a
// hidden frame. Zensical would load such a replacement from another host.
if (location.protocol === "file:")
  window.Worker = class {
    constructor(url) {
      this.frame = document.body.appendChild(document.createElement("iframe"))
      this.frame.hidden = true
      this.inside = this.frame.contentWindow
      this.inside.postMessage = (message) => {
        const data = structuredClone(message)
        setTimeout(() => this.onmessage?.({ data }))
      }
      const script = this.inside.document.createElement("script")
      script.src = url
      this.ready = new Promise((done) => { script.onload = done })
      script.onerror = (event) => this.onerror?.(event)
      this.inside.document.body.append(script)
    }
    postMessage(message) {
      const data = structuredClone(message)
      this.ready.then(() => this.inside.onmessage({ data }))
    }
    terminate() {
      this.frame.remove()
    }
  }
